"""Changed fields and their ranking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import pytest

from reprokit.compare import compare, environment
from reprokit.compare.environment import SECTIONS, flatten
from reprokit.compare.rules import RULES, find, matches
from reprokit.model.comparison import FieldChange
from reprokit.model.environment import Environment
from tests.compare import builders
from tests.compare.builders import fingerprint, moved

OPENBLAS = {"path": "numpy.libs/libopenblas.so", "version": None, "build_id": "aa", "sha256": None}


def changes(stages: list[dict[str, Any]] | None = None, **head: Any) -> list[FieldChange]:
    return compare(fingerprint(), fingerprint(stages, **head)).environment


def fields(found: list[FieldChange]) -> list[str]:
    return [change.field for change in found]


def test_nothing_changed() -> None:
    assert changes() == []


def test_paths_put_odd_keys_in_brackets() -> None:
    paths = flatten(fingerprint(gpus=[builders.gpu()]))
    assert paths['packages["ruamel.yaml"]'] == "0.18"
    assert paths['libraries["libgomp.so.1"].build_id'] == "abcd"
    assert paths["gpus[0].name"] == "NVIDIA H200"
    assert "driver.version" not in paths


@pytest.mark.parametrize(
    ("variable", "value", "stage", "effective"),
    [
        ("ATEN_CPU_CAPABILITY", "avx2", "kernel.softmax.fp32", {"torch__cpu_capability": "AVX2"}),
        ("MKL_CBWR", "COMPATIBLE", "kernel.gemm.fp32", {"torch__mkl_cbwr": "COMPATIBLE"}),
        ("ONEDNN_MAX_CPU_ISA", "AVX2", "kernel.gelu.fp32", {"torch__onednn_isa": "Intel AVX2"}),
        (
            "OMP_NUM_THREADS",
            "1",
            "kernel.numpy_matmul.fp32",
            {"torch__num_threads": 1, "torch__openmp__max_threads": 1},
        ),
        ("OPENBLAS_CORETYPE", "Haswell", "kernel.numpy_matmul.fp32", {"numpy__blas__core": "Haswell"}),
        ("SOMETHING_NEW", "1", "kernel.gemm.fp32", {}),
    ],
)
def test_a_changed_variable_stands_before_what_follows_from_it(
    variable: str, value: str, stage: str, effective: dict[str, Any]
) -> None:
    found = changes(
        moved(stage),
        source__commit="b" * 40,
        system__kernel="6.2",
        run__other_variables={"count": 4, "sha256": builders.sha("more"), "values": None},
        **{f"variables__{variable}": value},
        **effective,
    )
    assert found[0].field == f"variables.{variable}"
    assert (found[0].base, found[0].head) == (None, value)
    assert found[0].relevance == ("possible" if variable == "SOMETHING_NEW" else "likely")
    assert {change.relevance for change in found[1 : len(effective) + 1]} <= {"likely"}
    assert fields(found)[-1] == "run.other_variables.sha256"
    assert all(change.reason for change in found)


def test_another_numpy_is_named_first_and_the_hash_of_all_packages_last() -> None:
    found = changes(
        moved("kernel.numpy_matmul.fp32"),
        packages__numpy="2.2.6",
        numpy__version="2.2.6",
        numpy__blas__version="0.3.28",
        libraries={**builders.environment()["libraries"], "libscipy_openblas64_.so": OPENBLAS},
        python__packages_sha256=builders.sha("other"),
    )
    assert fields(found) == [
        "packages.numpy",
        "numpy.version",
        "numpy.blas.version",
        'libraries["libscipy_openblas64_.so"]',
        "python.packages_sha256",
    ]
    assert found[0].relevance == "likely"


def test_only_numpy_moving_does_not_blame_torch() -> None:
    found = changes(
        moved("kernel.numpy_matmul.fp32"), packages__numpy="2.2.6", variables__MKL_CBWR="COMPATIBLE"
    )
    assert [(change.field, change.relevance) for change in found] == [
        ("packages.numpy", "likely"),
        ("variables.MKL_CBWR", "possible"),
    ]


def test_an_unknown_field_is_possible_and_never_hidden() -> None:
    assert find("future.setting") == (len(RULES), None)
    (change,) = changes(moved("kernel.gemm.fp32"), numpy__cpu_baseline=["SSE9"])
    assert change.field == "numpy.cpu_baseline"


@pytest.mark.parametrize("name", ["MKL_VERBOSE", "ONEDNN_VERBOSE", "DNNL_VERBOSE"])
def test_a_switch_that_only_prints_is_never_blamed_nor_does_it_excuse_the_machine(name: str) -> None:
    verbose = {f"variables__{name}": "1"}
    found = compare(fingerprint(), fingerprint(moved("kernel.gemm.fp32"), cpu__model="Another", **verbose))
    assert {change.field: change.relevance for change in found.environment}[f"variables.{name}"] == "unlikely"
    assert found.diagnosis.caused_by_change == "no"


def test_what_is_known_to_change_no_number_is_unlikely() -> None:
    found = changes(
        moved("kernel.gemm.fp32"), system__kernel="7", system__locale="C", source__commit="c" * 40
    )
    assert {change.relevance for change in found} == {"unlikely"}


def test_a_machine_s_field_is_external_and_what_follows_from_it_too() -> None:
    found = {
        change.field: change.external
        for change in changes(moved("kernel.softmax.fp32"), cpu__isa="AVX2", torch__cpu_capability="AVX2")
    }
    assert found == {"cpu.isa": True, "torch.cpu_capability": True}
    mixed = {
        change.field: change.external
        for change in changes(
            moved("kernel.softmax.fp32"),
            cpu__isa="AVX2",
            torch__cpu_capability="AVX2",
            variables__ATEN_CPU_CAPABILITY="avx2",
        )
    }
    assert mixed["torch.cpu_capability"] is False


def test_one_library_or_gpu_more_is_one_change() -> None:
    libraries = {**builders.environment()["libraries"], "libnccl.so.2": OPENBLAS}
    found = changes(gpus=[builders.gpu()], libraries=libraries)
    assert {change.field: change.head for change in found} == {
        'libraries["libnccl.so.2"]': "numpy.libs/libopenblas.so",
        "gpus[0]": "NVIDIA H200",
    }


def test_torch_that_cannot_be_imported_any_more() -> None:
    found = changes(torch=None)
    assert "torch.version" in fields(found)
    assert all(change.head is None for change in found)


def test_what_only_full_detail_shows_is_no_change() -> None:
    private = {"packages": {"numpy": "2.4.6"}, "variables": {"LD_X": "sha256:0"}, "run__detail": "private"}
    full = {
        "packages": {"numpy": "2.2.6", "attrs": "1"},
        "variables": {"LD_X": "/opt/x"},
        "run__detail": "full",
    }
    found = compare(fingerprint(**private), fingerprint(**full))
    assert fields(found.environment) == ["packages.numpy"]
    assert any("only one side was recorded with --detail full" in warning for warning in found.warnings)
    again = compare(fingerprint(**private), fingerprint(**{**full, "run__detail": "private"}))
    assert set(fields(again.environment)) == {"packages.numpy", "packages.attrs", "variables.LD_X"}


def test_true_and_one_are_different_values() -> None:
    base = fingerprint(torch__flush_denormal=False)
    found = compare(base, fingerprint(torch__flush_denormal=True)).environment
    assert [(change.base, change.head) for change in found] == [(False, True)]


def test_gpu_fields_explain_nothing_on_a_cpu() -> None:
    stages = moved("kernel.gemm.fp32")
    on_cpu = changes(stages, driver__version="580.1")
    assert on_cpu[0].relevance == "unlikely"
    assert "ran on the cpu" in on_cpu[0].reason
    base = fingerprint(probe__device="cuda")
    on_gpu = compare(base, fingerprint(stages, probe__device="cuda", driver__version="580.1")).environment
    assert on_gpu[0].relevance == "possible"
    assert on_gpu[0].external


@pytest.mark.parametrize(
    ("name", "operator", "kernels", "relevance"),
    [
        ("kernel.gemm.64x64", "gemm", (["sgemm_a"], ["sgemm_a"]), "possible"),
        ("kernel.gemm.64x64", "gemm", (None, None), "possible"),
        ("kernel.gemm.64x64", "gemm", (["sgemm_a"], ["sgemm_b"]), "likely"),
        ("kernel.compiled.softmax.fp32", "softmax", (None, None), "likely"),
        ("collective.all_reduce", "collective", (None, None), "likely"),
    ],
)
def test_a_driver_matters_where_something_is_compiled_or_collected_or_another_kernel_ran(
    name: str, operator: str, kernels: tuple[list[str] | None, list[str] | None], relevance: str
) -> None:
    sides = []
    for content, names in zip(([1.0, 2.0], [1.0, 2.0000002]), kernels, strict=True):
        known = {} if names is None else {"kernels": names}
        sides.append([*builders.trace(), builders.stage(name, operator, content, **known)])
    found = compare(
        fingerprint(sides[0], probe__device="cuda"),
        fingerprint(sides[1], probe__device="cuda", driver__version="580.1", variables__CUBLAS_X="1"),
    ).environment
    driver = next(change for change in found if change.field == "driver.version")
    assert driver.relevance == relevance
    if operator == "gemm" and relevance == "possible":
        assert found[0].field == "variables.CUBLAS_X"
        assert driver.reason.endswith("none of what it is known to move did")


def test_what_cannot_explain_stands_below_what_nobody_knows() -> None:
    stages = moved("kernel.gemm.fp32")
    found = changes(stages, system__libc="glibc 2.40", cpu__microcode="0x2b")
    assert [(change.field, change.relevance) for change in found] == [
        ("cpu.microcode", "possible"),
        ("system.libc", "possible"),
    ]


def test_every_rule_can_be_reached() -> None:
    """A rule behind a wider pattern would be dead."""
    for place, rule in enumerate(RULES):
        example = rule.pattern.replace("gpus?*", "gpus[0]").replace('?"', '["')
        example = example.replace("packages?*", 'packages["x.y"]').replace("*", "x")
        assert find(example)[0] == place, rule.pattern


def leaves(kind: Any, path: str) -> Iterator[str]:
    """Every field of a model by its dotted path, with an example for each key or index."""
    if get_origin(kind) is dict:
        yield from leaves(get_args(kind)[1], f'{path}["x.y"]')
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from leaves(field.type, f"{path}.{field.encode_name}")
    elif structures := [one for one in get_args(kind) if _has_structure(one)]:
        inner = f"{path}[0]" if get_origin(kind) is list else path
        for one in structures:
            yield from leaves(one, inner)
    else:
        yield path


def _has_structure(kind: Any) -> bool:
    return (
        get_origin(kind) is dict
        or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
        or any(_has_structure(one) for one in get_args(kind))
    )


def test_every_field_has_a_rule_of_its_section() -> None:
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(Environment)}
    paths = [path for name in SECTIONS if name != "seeds" for path in leaves(kinds[name], name)]
    assert len(paths) > 120
    assert {"torch.cuda_build", "gpus[0].ecc.current", 'libraries["x.y"].build_id'} <= set(paths)
    without = [path for path in paths if (rule := find(path)[1]) is None or rule.pattern.startswith("*")]
    assert without == []


@pytest.mark.parametrize(
    ("field", "pattern"),
    [
        ('libraries["libomp.so.5"].build_id', 'libraries?"*libomp*'),
        ('libraries["libiomp5.so"].build_id', 'libraries?"*libiomp*'),
        ('libraries["numpy.libs/libgomp.so.1"].build_id', 'libraries?"*libgomp*'),
        ('libraries["numpy/_multiarray_umath.so"].build_id', 'libraries?"numpy/*'),
        ('libraries["libnvidia-ptxjitcompiler.so.1"].version', 'libraries?"libnvidia-*'),
        ('libraries["libcuda.so.1"].build_id', 'libraries?"libcuda.so*'),
    ],
)
def test_libraries_are_known_wherever_they_lie(field: str, pattern: str) -> None:
    rule = find(field)[1]
    assert rule is not None
    assert rule.pattern == pattern


def test_no_rule_follows_from_itself() -> None:
    """What would recur for ever, and whose a field is could not be said."""
    causes = {
        rule.pattern: {
            other.pattern
            for other in RULES
            for cause in rule.causes
            if matches(other.pattern.replace("*", "x"), cause)
        }
        for rule in RULES
    }
    while leaves := {pattern for pattern, behind in causes.items() if not behind & set(causes)}:
        causes = {pattern: behind for pattern, behind in causes.items() if pattern not in leaves}
    assert causes == {}


def test_another_processor_stands_before_all_that_follows_from_it() -> None:
    found = changes(
        moved("kernel.softmax.fp32"),
        cpu__model="Other CPU",
        cpu__isa="AVX2",
        torch__cpu_capability="AVX2",
        torch__build__config_sha256=builders.sha("build"),
        torch__mkl_cbwr="AVX2",
        numpy__blas__core="Haswell",
    )
    assert fields(found)[:3] == ["cpu.model", "cpu.isa", "torch.cpu_capability"]
    assert all(change.external for change in found)


def test_modules_of_numpy_follow_from_numpy() -> None:
    modules = {
        f"numpy/{name}.so": {"path": f"numpy/{name}.so", "version": None, "build_id": None, "sha256": None}
        for name in ("_umath", "_generator")
    }
    base = fingerprint(libraries=modules)
    newer = {name: library | {"build_id": "cc"} for name, library in modules.items()}
    head = fingerprint(moved("kernel.numpy_matmul.fp32"), libraries=newer, packages__numpy="2.2.6")
    assert fields(compare(base, head).environment)[0] == "packages.numpy"


def test_a_huge_environment_costs_few_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    library = {"path": "x", "version": None, "sha256": None}
    names = [f"{('libtorch', 'libmkl', 'numpy/m')[number % 3]}{number}.so" for number in range(1900)]
    sides = [
        fingerprint(
            libraries={name: library | {"build_id": build_id} for name in names},
            packages={f"package-{number}": build_id for number in range(4900)} | {"torch": build_id},
            torch__cpu_capability=build_id,
        )
        for build_id in ("aa", "bb")
    ]
    calls = 0

    def counted(field: str, pattern: str) -> bool:
        nonlocal calls
        calls += 1
        return matches(field, pattern)

    monkeypatch.setattr(environment, "matches", counted)
    found = compare(*sides).environment
    assert len(found) == 1900 + 4900 + 2
    assert 0 < calls <= 8 * len(found)  # eight patterns, each held once against each field


def test_another_image_is_a_change_under_review() -> None:
    built = {
        "name": "ours",
        "digest": None,
        "recipe": builders.sha("recipe"),
        "base": f"debian:12@{builders.sha('base')}",
        "checked": True,
    }
    pulled = built | {"name": "ready", "digest": builders.sha("image"), "recipe": None, "base": None}
    moving = moved("kernel.softmax.fp32")
    for found in (
        changes(moving, image=built),
        compare(fingerprint(image=built), fingerprint(moving)).environment,
        compare(fingerprint(image=built), fingerprint(moving, image=pulled | {"checked": False})).environment,
    ):
        by_field = {change.field: (change.relevance, change.external) for change in found}
        for field in ("image.recipe", "image.base"):
            assert by_field[field] == ("possible", False)
        for field in ("image.name", "image.checked"):
            assert by_field[field] == ("unlikely", False)
    assert by_field["image.digest"] == ("possible", False)
    result = compare(
        fingerprint(image=built), fingerprint(moving, image=built | {"recipe": builders.sha("x")})
    )
    assert (result.diagnosis.class_, result.diagnosis.caused_by_change) == ("environment", "possible")
    assert changes(image=None) == []
