"""The class of a difference, and whether the change under review can be its cause."""

from __future__ import annotations

from typing import Any

import pytest

from reprokit.compare import compare
from reprokit.model.comparison import Diagnosis
from tests.compare import builders
from tests.compare.builders import changed, changed_all, fingerprint, jittered, moved, numbers_of

OTHER = builders.sha("other")
GPU: dict[str, Any] = {"probe__device": "cuda", "class_key": "cuda: NVIDIA H200, 132 SMs, mode default"}


def diagnosis(stages: list[dict[str, Any]] | None = None, **head: Any) -> Diagnosis:
    return compare(fingerprint(), fingerprint(stages, **head)).diagnosis


def on_gpu(stages: list[dict[str, Any]] | None = None, **head: Any) -> Diagnosis:
    return compare(fingerprint(**GPU), fingerprint(stages, **GPU, **head)).diagnosis


def test_only_a_driver_is_not_the_change_s_fault() -> None:
    found = on_gpu(moved("kernel.gemm.fp32"), driver__version="580.1", source__commit="b" * 40)
    assert (found.class_, found.caused_by_change) == ("environment", "no")
    assert "driver.version unset → 580.1" in found.reason


@pytest.mark.parametrize("also", [{"variables__MKL_CBWR": "COMPATIBLE"}, {"source__probe_sha256": OTHER}])
def test_a_driver_and_something_of_ours_is_possible(also: dict[str, str]) -> None:
    found = on_gpu(moved("kernel.gemm.fp32"), driver__version="580.1", **also)
    assert (found.class_, found.caused_by_change) == ("environment", "possible")


def test_only_the_code_differs() -> None:
    for field, value in (("source__probe_sha256", OTHER), ("source__reprokit", "0.2.0")):
        found = diagnosis(moved("kernel.gemm.fp32"), source__commit="b" * 40, **{field: value})
        assert (found.class_, found.caused_by_change) == ("code", "yes")


def test_a_commit_by_itself_changes_no_number() -> None:
    found = diagnosis(moved("kernel.gemm.fp32"), source__commit="b" * 40, source__dirty=True)
    assert (found.class_, found.caused_by_change) == ("unexplained", "possible")
    missed = diagnosis(changed("invariant.gemm", sha256=OTHER), source__commit="b" * 40)
    assert (missed.class_, missed.caused_by_change) == ("environment", "no")
    assert "broken kernel or machine" in missed.reason


def test_data_come_before_everything_but_instability() -> None:
    stages = changed_all(
        {
            "data.tokens": {"sha256": OTHER},
            "weights.head": {"sha256": OTHER},
            "invariant.gemm": {"sha256": OTHER},
            "kernel.gemm.fp32": {"content": jittered(numbers_of("kernel.gemm.fp32"), 1e-7)},
        }
    )
    found = diagnosis(stages, source__probe_sha256=OTHER)
    assert (found.class_, found.first_stage, found.caused_by_change) == ("data", "data.tokens", "yes")
    assert diagnosis(stages, source__commit="b" * 40).caused_by_change == "possible"
    mixed = diagnosis(stages, source__probe_sha256=OTHER, variables__MKL_CBWR="COMPATIBLE")
    assert mixed.caused_by_change == "possible"


def test_weights() -> None:
    found = diagnosis(changed("weights.head", sha256=OTHER))
    assert (found.class_, found.first_stage) == ("weights", "weights.head")


def test_a_quantiser_that_changes_equal_weights_is_no_difference_of_weights() -> None:
    used = builders.stage("weights.head.quantised", "quantize", kind="invariant", inputs=["weights.head"])
    base = fingerprint([*builders.trace(), used])
    head = fingerprint([*builders.trace(), used | {"sha256": OTHER}])
    assert compare(base, head).diagnosis.class_ == "environment"


def test_a_missed_answer_is_code_where_the_code_differs_and_else_the_machine() -> None:
    stages = changed("invariant.gemm", sha256=OTHER)
    assert diagnosis(stages, source__probe_sha256=OTHER).class_ == "code"
    found = diagnosis(stages)
    assert (found.class_, found.caused_by_change) == ("environment", "no")
    assert "broken kernel or machine" in found.reason


@pytest.mark.parametrize(
    ("races", "kind"), [("torch.Tensor.scatter_add_", "nondeterministic-kernel"), (None, "logic")]
)
def test_unstable_comes_first(races: str | None, kind: str) -> None:
    name = "kernel.scatter_add.fp32"
    unstable = {"state": "unstable"} | ({"races": races} if races else {})
    stages = changed_all({name: unstable, "data.tokens": {"sha256": OTHER}})
    found = diagnosis(stages, driver__version="580.1")
    assert (found.class_, found.first_stage) == (kind, name)
    assert ("torch documents torch.Tensor.scatter_add_ as nondeterministic" in found.reason) == bool(races)


def test_one_that_no_documentation_excuses_is_logic() -> None:
    race = {"state": "unstable", "races": "torch.Tensor.scatter_add_"}
    stages = changed_all({"kernel.gemm.fp32": {"state": "unstable"}, "kernel.scatter_add.fp32": race})
    assert diagnosis(stages).class_ == "logic"


def test_only_metrics_within_the_band_are_chance() -> None:
    stages = changed("metrics.digits.losses", content=jittered(numbers_of("metrics.digits.losses"), 1e-8))
    found = diagnosis(stages, metrics=[builders.metric(numbers=[0.95, 0.96, 0.94, 0.955, 0.9451])])
    assert found.class_ == "statistical"


def test_nothing_recorded_differs() -> None:
    found = diagnosis(moved("kernel.gemm.fp32"))
    assert found.class_ == "unexplained"
    assert "--detail full" in found.reason
    hidden = diagnosis(
        moved("kernel.gemm.fp32"), run__other_variables={"count": 4, "sha256": OTHER, "values": None}
    )
    assert hidden.class_ == "unexplained"
    assert "variable that is not shown" in hidden.reason
    both = [
        fingerprint(
            stages,
            run__detail="full",
            run__other_variables={"count": 1, "sha256": builders.sha(value), "values": {"MODEL": value}},
        )
        for stages, value in ((None, "small"), (moved("kernel.gemm.fp32"), "large"))
    ]
    found = compare(*both)
    assert "differs: run.other_variables.values.MODEL" in found.diagnosis.reason
    one_sided = compare(fingerprint(), both[1]).environment
    assert "run.other_variables.values.MODEL" not in [change.field for change in one_sided]


def test_classes_of_kernels_come_first() -> None:
    names = ("layer0.qkv.fp32", "layer0.attention.fp32", "kernel.softmax.fp32", "kernel.gelu.fp32")
    stages = changed_all({name: {"content": jittered(numbers_of(name), 1e-7)} for name in names})
    assert diagnosis(stages, variables__MKL_CBWR="COMPATIBLE").operators == ["elementwise", "softmax", "gemm"]


def test_a_changed_environment_without_moved_numbers_is_no_diagnosis() -> None:
    found = compare(fingerprint(), fingerprint(driver__version="580.1"))
    assert found.diagnosis.class_ is None
    assert found.verdict.state == "holds"
    assert found.environment[0].field == "driver.version"


def test_a_driver_upgrade_with_all_that_follows_is_not_the_change_s_fault() -> None:
    def machine(version: str, path: str, build_id: str) -> dict[str, Any]:
        library = {"path": "x", "version": version, "build_id": build_id, "sha256": None}
        names = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
        return GPU | {
            "driver__version": version,
            "driver__cuda_api": version[:2],
            "driver__libcuda_version": version,
            "driver__libcuda_path": path,
            "gpus": [builders.gpu(vbios=version)],
            "libraries": {name: library for name in names},
        }

    base = fingerprint(changed("kernel.gemm.fp32", kernels=["a"]), **machine("570.1", "libcuda.so.1", "aa"))
    other = changed_all(
        {
            "kernel.gemm.fp32": {
                "content": jittered(numbers_of("kernel.gemm.fp32"), 1e-7),
                "kernels": ["b"],
            }
        }
    )
    head = fingerprint(other, **machine("580.1", "libcuda.so.2", "bb"))
    found = compare(base, head)
    assert len(found.environment) == 11
    assert all(change.external for change in found.environment)
    assert (found.diagnosis.class_, found.diagnosis.caused_by_change) == ("environment", "no")
    assert found.environment[0].field == "driver.version"


def test_a_driver_cannot_explain_drift_on_a_cpu() -> None:
    found = diagnosis(moved("kernel.gemm.fp32"), driver__version="580.1", gpus=[builders.gpu()])
    assert found.class_ == "unexplained"


def test_a_broken_bound_without_a_difference_is_no_chance() -> None:
    broken = builders.stage("kernel.more", bound={"ratio": 7.0, "holds": False})
    head = fingerprint([*builders.trace(), broken])
    new = compare(fingerprint(), head).diagnosis
    assert (new.class_, new.first_stage) == ("environment", "kernel.more")
    assert "kernel.more breaks its bound" in new.reason
    assert "first stage that differs" not in new.reason
    both = compare(head, head).diagnosis
    assert (both.class_, both.caused_by_change) == ("environment", "no")
    assert "the base has the same fault" in both.reason


def test_what_starts_behind_a_blind_stage_is_no_chance() -> None:
    base = [*builders.trace(), builders.stage("kernel.behind", inputs=["kernel.gelu.fp32"])]
    head = [
        one | {"sha256": OTHER} if "gelu" in one["name"] or "behind" in one["name"] else one for one in base
    ]
    blind = [
        [one | {"state": "blind"} if "gelu" in one["name"] else one for one in side] for side in (base, head)
    ]
    found = compare(*map(fingerprint, blind)).diagnosis
    assert (found.class_, found.first_stage) == ("unexplained", "kernel.behind")


def test_only_stages_of_another_version_are_the_code_s() -> None:
    found = diagnosis(changed("kernel.gemm.fp32", version=2), source__probe_sha256=OTHER)
    assert (found.class_, found.caused_by_change) == ("code", "yes")
    assert "kernel.gemm.fp32" in found.reason


def marks(found: Diagnosis) -> dict[str, str]:
    assert [check.cause for check in found.checklist] == [
        "data",
        "weights",
        "code",
        "environment",
        "randomness",
    ]
    return {check.cause: check.mark for check in found.checklist}


AGREES = {
    "data": "agrees",
    "weights": "agrees",
    "code": "agrees",
    "environment": "agrees",
    "randomness": "agrees",
}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({}, {}),
        ({"stages": changed("data.tokens", sha256=OTHER)}, {"data": "cause"}),
        ({"stages": changed("weights.head", sha256=OTHER)}, {"weights": "cause"}),
        ({"stages": moved("kernel.gemm.fp32"), "source__probe_sha256": OTHER}, {"code": "cause"}),
        (
            {"stages": moved("kernel.gemm.fp32"), "variables__MKL_CBWR": "COMPATIBLE"},
            {"environment": "cause"},
        ),
        # what differs beside the cause is shown, and not taken for it
        (
            {"stages": changed("data.tokens", sha256=OTHER), "variables__MKL_CBWR": "COMPATIBLE"},
            {"data": "cause", "environment": "differs"},
        ),
        (
            {
                "stages": moved("kernel.gemm.fp32"),
                "source__probe_sha256": OTHER,
                "variables__MKL_CBWR": "COMPATIBLE",
            },
            {"environment": "cause", "code": "differs"},
        ),
        (
            {
                "stages": changed(
                    "kernel.gemm.fp32", state="unstable", reason="2 different results", sha256=OTHER
                )
            },
            {"randomness": "cause"},
        ),
        ({"stages": moved("kernel.gemm.fp32")}, {}),
    ],
)
def test_the_checklist_names_every_place_in_the_order_of_search(
    head: dict[str, Any], expected: dict[str, str]
) -> None:
    assert marks(diagnosis(**head)) == AGREES | expected


def test_the_checklist_says_what_was_seen() -> None:
    found = diagnosis(changed("data.tokens", sha256=OTHER), variables__MKL_CBWR="COMPATIBLE")
    reasons = {check.cause: check.reason for check in found.checklist}
    assert reasons["data"] == "Not the same: data.tokens."
    assert reasons["environment"] == "It differs: variables.MKL_CBWR unset → COMPATIBLE."
    assert reasons["randomness"] == "Equal seeds, and the repeats of each side agree."


def test_another_seed_is_in_the_checklist() -> None:
    seed = diagnosis(moved("rng.torch"), seeds__base=7).checklist[-1]
    assert (seed.cause, seed.mark, seed.reason) == (
        "randomness",
        "cause",
        "The seed differs: seeds.base 0 → 7.",
    )


def test_without_a_stage_of_data_nothing_is_known_of_them() -> None:
    rest = [one for one in builders.trace() if not one["name"].startswith("data.")]
    names = {one["name"] for one in rest}
    for one in rest:
        one["inputs"] = [name for name in one["inputs"] if name in names]
    found = compare(fingerprint(rest), fingerprint(rest)).diagnosis
    assert marks(found)["data"] == "unknown"
