"""`reprokit validate` on the documents that a user may hold."""

import msgspec
import pytest

from reprokit.compare.baseline import approve
from reprokit.model import canonical
from tests.compare import builders
from tests.compare.builders import changed, fingerprint
from tests.model.test_reading import HOSTILE

MOVED = {"change": "another order", "moved": True, "flipped": None}


def test_every_hostile_document_costs_one_line_and_exit_code_2(run, tmp_path):
    paths = []
    for index, (data, _) in enumerate(HOSTILE.values()):
        paths.append(tmp_path / f"{index}.json")
        paths[-1].write_bytes(data)
    done = run("validate", *paths)
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert len(lines) == len(HOSTILE) + 1
    for line, path, (_, expected) in zip(lines, paths, HOSTILE.values(), strict=False):
        assert line.startswith(f"{path}: ")
        assert expected in line
    assert lines[-1] == f"reprokit: {len(HOSTILE)} of {len(HOSTILE)} files not valid"
    assert "Traceback" not in done.stderr


def test_a_document_of_no_known_type_is_refused(run, tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"document": "fingerprnt"}')
    done = run("validate", path)
    assert done.returncode == 2
    assert '/document: expected "fingerprint" or "baseline" or "comparison"' in done.stderr
    path.write_text("[1]")
    assert "/document: expected" in run("validate", path).stderr


def test_a_configuration_is_valid_or_says_every_problem(run, tmp_path):
    good, bad = tmp_path / "good.yml", tmp_path / "bad.yml"
    good.write_text(
        "version: 1\ncells:\n  - name: cpu\n    runs-on: [self-hosted, linux]\n    level: process\n"
    )
    bad.write_text("version: 2\ncells:\n  - name: cpu\n    lvel: bit\n    seed: -3\n")
    done = run("validate", good)
    assert (done.returncode, done.stdout) == (0, f"{good}: a valid config\n")
    done = run("validate", good, bad)
    assert done.returncode == 2
    assert (
        f'{bad}: line 4, column 5: /cells/0/lvel: there is no key "lvel" here; did you mean "level"?'
        in done.stderr
    )
    assert f"{bad}: line 5, column 5: /cells/0/seed: expected minimum 0, found -3" in done.stderr
    assert f"{bad}: line 1, column 1: /version: expected" in done.stderr


def test_a_name_with_control_characters_does_not_reach_the_terminal(run, tmp_path):
    path = tmp_path / "x\x1b[31m\n.json"
    done = run("validate", path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"stages": [*builders.trace(), builders.stage("logits")]},
            "/stages/14/name: two stages are called logits",
        ),
        (
            {"metrics": [builders.metric(), builders.metric()]},
            "/metrics/1/name: two metrics are called digits.accuracy",
        ),
        ({"logit_hash": builders.sha("another")}, "/logit_hash: expected the hash of the stage `logits`"),
        (
            {"metrics": [builders.metric(numbers=[0.9])]},
            "/metrics/0/values: expected one for each of 5 seeds, found 1",
        ),
        (
            {"stages": changed("kernel.gemm.fp32", state="blind", control=MOVED)},
            "/stages/9/state: expected blind exactly where the control did not move, found blind",
        ),
        (
            {"stages": changed("kernel.gemm.fp32", control=MOVED | {"moved": False})},
            "/stages/9/state: expected blind exactly where the control did not move, found ok",
        ),
        (
            {"stages": changed("kernel.gemm.fp32", sha256=None)},
            "/stages/9/sha256: expected a hash exactly where the stage is available, found none in state ok",
        ),
        (
            {"stages": changed("kernel.gemm.fp32", state="unavailable")},
            "/stages/9/sha256: expected a hash exactly where the stage is available, found one in state unavailable",
        ),
    ],
)
def test_what_compare_would_refuse_is_not_valid(run, tmp_path, changes, problem):
    path = tmp_path / "x.json"
    bad = msgspec.to_builtins(fingerprint(**changes))
    path.write_bytes(canonical.encode(bad))
    done = run("validate", path)
    assert done.returncode == 2
    assert f"{path}: {problem}" in done.stderr
    baseline = msgspec.to_builtins(approve(None, fingerprint(), "cpu").baseline)
    baseline["approvals"].append({"reason": None, "fingerprint": bad})
    path.write_bytes(canonical.encode(canonical.sealed(baseline)))
    done = run("validate", path)
    assert done.returncode == 2
    assert f"{path}: /approvals/1/fingerprint{problem}" in done.stderr


def test_a_fingerprint_and_a_baseline_are_valid(run, tmp_path):
    documents = {"fingerprint": fingerprint(), "baseline": approve(None, fingerprint(), "cpu").baseline}
    for kind, document in documents.items():
        path = tmp_path / f"{kind}.json"
        path.write_bytes(canonical.encode(msgspec.to_builtins(document)))
        assert run("validate", path).stdout == f"{path}: a valid {kind}\n"


def test_a_name_that_a_workflow_would_obey_is_only_shown(run, tmp_path):
    import os

    path = os.path.relpath(tmp_path / "x ##[error]y.json")
    assert "##[" not in run("validate", path).stderr
    assert run("validate", "::error::x.json").stderr == "│ ::error::x.json: no such file\n"


def test_a_configuration_whose_files_are_missing_says_so(run, tmp_path):
    path = tmp_path / "x.yml"
    image = f"{{base: 'a@sha256:{'0' * 64}', python: '3.11', requirements: ci.lock}}"
    path.write_text(f"version: 1\ncells: [{{name: cpu, image: ours}}]\nimages:\n  ours: {image}\n")
    done = run("validate", path)
    assert done.returncode == 2
    assert "line 4, column" in done.stderr
    assert f"/images/ours/requirements: {tmp_path}/ci.lock: no such file or folder" in done.stderr
    (tmp_path / "ci.lock").write_text("")
    assert run("validate", path).returncode == 0
