"""A configuration: what is wrong with it and where, and the cells that it stands for."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import InvalidInput
from reprokit.model import matrix
from reprokit.model.config import Cell, Config, Image, Limits
from reprokit.model.yaml_reading import Text

DIGEST = "sha256:" + "0" * 64
BUILTIN = ("cpu", "cuda-12.8")
HUNDRED = list(range(1, 101))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reprokit.yml"


def read(path: Path, text: str) -> Config:
    path.write_text(text)
    return matrix.read_config(path, BUILTIN)


def problems(path: Path, text: str) -> list[str]:
    path.write_text(text)
    read = Text(path)
    return [str(read.error(*problem)) for problem in matrix.problems(read, BUILTIN)]


def cells(body: str) -> str:
    """A configuration with one cell of that body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"version: 1\ncells:\n  - name: cpu\n{lines}"


WRONG = {
    "a key": (
        "devise: cpu",
        'line 4, column 5: /cells/0/devise: there is no key "devise" here; did you mean "device"?',
    ),
    "a key like no other": (
        "zzz: 1",
        'line 4, column 5: /cells/0/zzz: there is no key "zzz" here: the keys are device, engine',
    ),
    "a limit": (
        "image: cpu\nlimits:\n  memry: 8g",
        '/cells/0/limits/memry: there is no key "memry" here; did you mean "memory"?',
    ),
    "a level": (
        "level: bits",
        '/cells/0/level: expected "bit" or "conclusion" or "process", found "bits"; did you mean "bit"?',
    ),
    "a mode": (
        "mode: stric",
        '/cells/0/mode: expected "both" or "default" or "strict", found "stric"; did you mean "strict"?',
    ),
    "a mode of an axis": (
        "matrix:\n  mode: [default, strickt]",
        'line 5, column 23: /cells/0/matrix/mode/1: expected "both" or "default" or "strict", found "strickt"',
    ),
    "a number for a word": (
        "python: 3.10",
        "/cells/0/python: expected string, found 3.1: write it in quotes",
    ),
    "a seed": ("seed: -1", "/cells/0/seed: expected minimum 0, found -1"),
    "no label": ("runs-on: []", "/cells/0/runs-on: expected minItems 1"),
    "an image": (
        "image: cuda-12",
        'column 5: /cells/0/image: no image "cuda-12"; did you mean "cuda-12.8"?: the images are cpu, cuda-12.8',
    ),
    "no image for docker": (
        "engine: docker",
        "line 4, column 5: /cells/0/engine: the engine docker runs an image",
    ),
    "a built image claimed": (
        "image: cpu\nengine: local",
        "line 5, column 5: /cells/0/engine: the engine local can only claim",
    ),
    "limits without a container": ("limits: {pids: 99}", "/cells/0/limits: limits are for a container"),
    "GPUs for a CPU": (
        "image: cpu\ngpus: [all]",
        "line 5, column 5: /cells/0/gpus: GPUs are only used with `device: cuda`",
    ),
    "GPUs for a process": (
        "device: cuda\ngpus: [all]",
        "/cells/0/gpus: a process sees the GPUs of its machine",
    ),
    "all and one": ("image: cpu\ndevice: cuda\ngpus: [all, '0']", "/cells/0/gpus: `all` stands alone"),
    "a variable that decides what runs": (
        "variables:\n  PYTHONPATH: x",
        "line 5, column 7: /cells/0/variables/PYTHONPATH: it decides which code runs",
    ),
    "a variable with a NUL": ('variables: {A: "\\0"}', "/cells/0/variables/A: no variable can hold a NUL"),
    "a name of no variable": (
        "variables: {A-B: x}",
        "line 4, column 17: /cells/0/variables/A-B: expected pattern",
    ),
    "a name of no variable, over two lines": (
        'variables: {"A\\nB": x}',
        "/cells/0/variables/A\\nB: expected",
    ),
    "a size": ("image: cpu\nlimits: {memory: 8 GB}", ', such as "8g", found "8 GB"'),
    "an interpreter that no image has": (
        "image: cpu\npython: .venv/bin/python",
        "line 5, column 5: /cells/0/python: expected an absolute path or a name",
    ),
    "an axis": (
        "matrix:\n  devise: [cpu]",
        'line 5, column 7: /cells/0/matrix/devise: "devise" is no key of a cell; did you mean "device"?',
    ),
    "an axis of names": ("matrix:\n  name: [a]", '"name" is no key of a cell'),
    "an empty axis": (
        "matrix:\n  seed: []",
        "line 5, column 7: /cells/0/matrix/seed: a list of values is expected",
    ),
    "a value of an axis": (
        "matrix:\n  seed: [1, -2]",
        "line 5, column 17: /cells/0/matrix/seed/1: expected minimum 0, found -2",
    ),
    "a value within a value": (
        "image: cpu\nmatrix:\n  limits: [{pids: 1}]",
        "line 6, column 17: /cells/0/matrix/limits/0/pids: expected minimum 16, found 1",
    ),
    "an exclusion of nothing": (
        "matrix:\n  seed: [1, 2]\n  exclude:\n    - seed: 3",
        "line 7, column 11: /cells/0/matrix/exclude/0: no combination is like",
    ),
    "a key of an exclusion": (
        "matrix:\n  seed: [1]\n  exclude:\n    - sed: 1",
        'line 7, column 11: /cells/0/matrix/exclude/0/sed: "sed" is no key of a cell; did you mean "seed"?',
    ),
    "an inclusion": (
        "matrix:\n  seed: [1]\n  include:\n    - {level: none}",
        "line 7, column 12: /cells/0/matrix/include/0/level: expected",
    ),
    "an inclusion of a word": ("matrix:\n  include: [x]", "/cells/0/matrix/include/0: expected a mapping"),
    "two values that have one name": (
        "matrix:\n  variables: [{A: x y}, {A: x-y}]",
        'two cells are called "cpu.A-x-y"',
    ),
    "an unknown image of an axis": (
        "matrix:\n  image: [cpu, gpu]",
        'line 5, column 20: /cells/0/matrix/image/1: no image "gpu"; did you mean "cpu"?',
    ),
    "GPUs of an axis": (
        "image: cpu\nmatrix:\n  gpus: [[], [all]]",
        "line 6, column 18: /cells/0/matrix/gpus/1: GPUs are only used with `device: cuda`",
    ),
    "a variable of an inclusion": (
        "matrix:\n  include:\n    - variables: {PYTHONHOME: x}",
        "line 6, column 23: /cells/0/matrix/include/0/variables/PYTHONHOME: it decides which code runs",
    ),
    "everything excluded": (
        "matrix:\n  seed: [1]\n  exclude: [{seed: 1}]",
        "line 4, column 5: /cells/0/matrix: no combination is left",
    ),
    "a matrix of nothing": ("matrix: {exclude: []}", "/cells/0/matrix: no combination is left"),
    "too many exclusions": (
        f"matrix:\n  seed: [1]\n  exclude: {[{'seed': 1}] * 257}",
        "line 6, column 7: /cells/0/matrix/exclude: 257 entries, at most 256",
    ),
    "an argument with a NUL": (
        'exec: [a, "b\\0"]',
        "line 4, column 5: /cells/0/exec: no command can hold a NUL",
    ),
    "an interpreter with a NUL": ('python: "\\0"', "/cells/0/python: no command can hold a NUL"),
    "a float that is whole": ("seed: 1.0", "line 4, column 5: /cells/0/seed: expected `int`, got `float`"),
    "a million combinations": (
        f"matrix: {{seed: {HUNDRED}, timeout-minutes: {HUNDRED}, runs-on: {HUNDRED}}}",
        "1000000 combinations up to here, at most 4096",
    ),
}


@pytest.mark.parametrize(("body", "expected"), WRONG.values(), ids=WRONG)
def test_a_wrong_cell_is_told_with_its_place(path: Path, body: str, expected: str) -> None:
    found = problems(path, cells(body))
    assert any(expected in problem for problem in found), found
    with pytest.raises(InvalidInput) as refused:
        matrix.read_config(path, BUILTIN)
    assert str(refused.value).startswith(found[0])


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("{}", "line 4, column 3: /images/ours: expected either `base`"),
        (f"{{base: a@{DIGEST}, pull: b@{DIGEST}}}", "expected either `base`"),
        (f"{{base: a@{DIGEST}, python: '3.12'}}", 'expected the key "requirements"'),
        (f"{{base: a@{DIGEST}, requirements: x.lock}}", 'expected the key "python"'),
        (f"{{pull: a@{DIGEST}, wheels: x}}", "/images/ours/wheels: `wheels` is for an image that is built"),
        (
            f"{{base: a@{DIGEST}, python: '3.12', requirements: ../x}}",
            "expected a path within the repository",
        ),
        (f"{{base: a@{DIGEST}, python: '3.12', requirements: /x}}", "expected a path within the repository"),
        (f"{{base: a@{DIGEST}, python: '3.12', requirements: a/../../x}}", "expected a path within"),
        (f'{{base: a@{DIGEST}, python: "3.12", requirements: x, wheels: "\\0"}}', "expected a path within"),
        ("{base: 'a:latest', python: '3.12', requirements: x}", "/images/ours/base: expected pattern"),
        (
            f"{{bse: a@{DIGEST}}}",
            'line 4, column 10: /images/ours/bse: there is no key "bse" here; did you mean "base"?',
        ),
    ],
)
def test_a_wrong_image_is_told_with_its_place(path: Path, image: str, expected: str) -> None:
    found = problems(path, f"version: 1\ncells: [{{name: x}}]\nimages:\n  ours: {image}\n")
    assert any(expected in problem for problem in found), found


def test_an_image_that_comes_with_reprokit_is_not_defined_anew(path: Path) -> None:
    text = f"version: 1\ncells: [{{name: x}}]\nimages: {{cpu: {{pull: a@{DIGEST}}}}}\n"
    assert "an image of that name comes with reprokit" in problems(path, text)[0]


@pytest.mark.parametrize("other", ["cpu", "CPU"])
def test_two_cells_of_one_name_are_refused(path: Path, other: str) -> None:
    (found,) = problems(path, f"version: 1\ncells:\n  - name: cpu\n  - name: {other}\n")
    assert f'line 4, column 5: /cells/1/name: two cells are called "{other}"' in found
    assert ("the same name" in found) == (other == "cpu")


def test_names_of_one_letter_are_told_apart_too(path: Path) -> None:
    (found,) = problems(path, "version: 1\ncells:\n  - name: a\n  - name: b\n  - name: a\n")
    assert (
        'line 5, column 5: /cells/2/name: two cells are called "a": there is the same name already' in found
    )


@pytest.mark.parametrize("name", ["con", "NUL", "com1.txt", "x."])
def test_a_name_that_is_no_file_on_every_system_is_refused(path: Path, name: str) -> None:
    assert "is no file name on every system" in problems(path, f"version: 1\ncells:\n  - name: {name}\n")[0]


def test_several_problems_are_counted(path: Path) -> None:
    with pytest.raises(InvalidInput, match=r" \(and 2 more: reprokit validate .*\)$"):
        read(path, "version: 2\ncells:\n  - name: cpu\n    seed: -1\n    level: x\n")


def test_every_problem_is_told_in_the_order_of_the_file(path: Path) -> None:
    cells = [f"  - {{name: c{index}, seed: -1}}\n" for index in range(12)]
    found = problems(
        path, "".join(["version: 1\ncells:\n", *cells, "  - name: x\n    lvel: 1\n    devise: 2\n"])
    )
    places = [re.search(r"line \d+, column \d+: (\S+):", problem) for problem in found]
    assert [place and place[1] for place in places] == [
        *(f"/cells/{index}/seed" for index in range(12)),
        "/cells/12/lvel",
        "/cells/12/devise",
    ]


def test_what_all_combinations_share_is_told_once(path: Path) -> None:
    (found,) = problems(path, cells("image: cpu\ngpus: [all]\nmatrix: {seed: [1, 2, 3]}"))
    assert "line 5, column 5: /cells/0/gpus: GPUs are only used" in found


def test_the_combinations_of_all_cells_together_are_counted(path: Path) -> None:
    axes = f"matrix: {{seed: {list(range(64))}, timeout-minutes: {list(range(1, 41))}}}"
    text = f"version: 1\ncells:\n  - {{name: a, {axes}}}\n  - {{name: b, {axes}}}\n"
    (found,) = problems(path, text)
    assert "/cells/1/matrix: 5120 combinations up to here, at most 4096 are looked at" in found


KEYS = [
    "version",
    "cells",
    "images",
    "name",
    "image",
    "engine",
    "variables",
    "limits",
    "memory",
    "cpus",
    "gpus",
]
KEYS += [
    "matrix",
    "include",
    "exclude",
    "seed",
    "mode",
    "pull",
    "base",
    "on-external-change",
    "runs-on",
    "zz",
    "x\ny",
]
RAW = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([1.0, 1.5, "cpu", "local", "", "a\nb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)
CELLS = st.lists(
    st.builds(lambda key, value: {"name": "a", key: value}, st.sampled_from(KEYS), RAW),
    min_size=1,
    max_size=3,
)


@given(RAW | st.fixed_dictionaries({"version": st.just(1), "cells": CELLS}, optional={"images": RAW}))
def test_any_plain_data_is_a_configuration_or_is_told_why_not(
    tmp_path_factory: pytest.TempPathFactory, raw: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_text(yaml.safe_dump(raw))
    try:
        config = matrix.read_config(path, BUILTIN)
    except InvalidInput as refused:
        assert re.match(rf"{re.escape(str(path))}: line \d+, column \d+: /", str(refused))
        assert "\n" not in str(refused)
    else:
        found = matrix.expanded(config)
        assert 1 <= len({cell.name.lower() for cell in found}) == len(found) <= 256


def test_without_a_file_the_error_says_how_to_start(path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file; the least that it says is version: 1"):
        matrix.read_config(path)
    text = re.search(r"cells: \[.*\]", matrix.EXAMPLE)
    assert text
    assert read(path, f"version: 1\n{text[0]}\n").cells[0].name == "cpu"


def test_the_defaults_are_those_of_the_model(path: Path) -> None:
    assert read(path, "version: 1\ncells: [{name: cpu}]\n") == Config(version=1, cells=[Cell(name="cpu")])


EVERYTHING = f"""
version: 1
on-external-change: neutral
images:
  ours: {{base: "a:1@{DIGEST}", python: "3.12", requirements: ci/x.lock, wheels: ci/wheels, driver: "525.60"}}
  theirs: {{pull: "b@{DIGEST}"}}
cells:
  - name: gpu
    runs-on: [self-hosted, h100]
    image: ours
    engine: docker
    python: /usr/bin/python3
    exec: [numactl, --membind=0]
    device: cuda
    gpus: ["0", MIG-1, nvidia.com/gpu=0]
    level: process
    mode: default
    profile: quick
    seed: 7
    variables: {{OMP_NUM_THREADS: 1, MKL_CBWR: COMPATIBLE}}
    limits: {{memory: 16g, cpus: 2.5, pids: 100, shm: 2g}}
    timeout-minutes: 5
  - {{name: claimed, image: theirs, engine: local}}
"""


def test_every_key_is_read(path: Path) -> None:
    config = read(path, EVERYTHING)
    assert config.on_external_change == "neutral"
    assert config.images["theirs"] == Image(pull=f"b@{DIGEST}")
    assert config.cells[0] == Cell(
        name="gpu",
        runs_on=["self-hosted", "h100"],
        image="ours",
        engine="docker",
        python="/usr/bin/python3",
        exec=["numactl", "--membind=0"],
        device="cuda",
        gpus=["0", "MIG-1", "nvidia.com/gpu=0"],
        level="process",
        profile="quick",
        seed=7,
        variables={"OMP_NUM_THREADS": 1, "MKL_CBWR": "COMPATIBLE"},
        limits=Limits(memory="16g", cpus=2.5, pids=100, shm="2g"),
        timeout_minutes=5,
    )


MATRIX = """
version: 1
cells:
  - name: before
  - name: gpu
    level: process
    matrix:
      device: [cpu, cuda]
      variables: [{}, {NVIDIA_TF32_OVERRIDE: "0"}]
      runs-on: [[self-hosted, a100]]
      exclude:
        - {device: cpu, variables: {NVIDIA_TF32_OVERRIDE: "0"}}
      include:
        - {seed: 3, level: bit}
"""


def test_a_cell_with_a_matrix_stands_for_its_combinations(path: Path) -> None:
    found = matrix.expanded(read(path, MATRIX))
    assert [cell.name for cell in found] == [
        "before",
        "gpu.cpu.none.self-hosted_a100",
        "gpu.cuda.none.self-hosted_a100",
        "gpu.cuda.NVIDIA_TF32_OVERRIDE-0.self-hosted_a100",
        "gpu.3.bit",
    ]
    assert found[3] == Cell(
        name=found[3].name,
        level="process",
        device="cuda",
        variables={"NVIDIA_TF32_OVERRIDE": "0"},
        runs_on=["self-hosted", "a100"],
    )
    assert (found[4].level, found[4].seed, found[4].device) == ("bit", 3, "cpu")


def test_inclusions_alone_stand_for_themselves(path: Path) -> None:
    found = matrix.expanded(read(path, cells("level: process\nmatrix: {include: [{seed: 3}, {level: bit}]}")))
    assert [(cell.name, cell.seed, cell.level) for cell in found] == [
        ("cpu.3", 3, "process"),
        ("cpu.bit", 0, "bit"),
    ]


def test_a_cell_is_found_by_its_name(path: Path) -> None:
    config = read(path, MATRIX)
    assert matrix.find(config, "gpu.3.bit").seed == 3
    with pytest.raises(
        InvalidInput, match='no cell "gpu.3.bits"; did you mean "gpu.3.bit".: the cells are before, gpu'
    ):
        matrix.find(config, "gpu.3.bits")


def test_more_cells_than_github_runs_are_refused_with_their_number(path: Path) -> None:
    axis = ", ".join(map(str, range(1, 257)))
    text = f"version: 1\ncells:\n  - name: one\n  - name: many\n    matrix: {{seed: [{axis}]}}\n"
    assert "line 2, column 1: /cells: 257 cells, and GitHub runs at most 256" in problems(path, text)[0]
    assert len(matrix.expanded(read(path, text.replace("  - name: one\n", "")))) == 256


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}", fullmatch=True), st.lists(VALUES, max_size=6))
def test_a_name_is_that_of_a_file_and_of_an_artifact(cell: str, values: list[object]) -> None:
    name = matrix._name(cell, values)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name)
    assert len(name) <= 120
    assert name == matrix._name(cell, values)


@given(st.lists(st.text(min_size=80, max_size=90, alphabet="abc"), min_size=3, max_size=3, unique=True))
def test_names_that_are_cut_stay_apart(values: list[str]) -> None:
    names = {matrix._name("cell", [*values[:2], value]) for value in values}
    assert len(names) == 3
    assert all(len(name) <= 120 for name in names)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True), st.integers(60, 99))
def test_another_value_changes_no_other_name(seeds: list[int], more: int) -> None:
    def names(values: list[int]) -> set[str]:
        config = Config(version=1, cells=[Cell(name="c", matrix={"seed": values, "device": ["cpu", "cuda"]})])
        return {cell.name for cell in matrix.expanded(config)}

    assert names(seeds) < names([*seeds, more])


def test_the_text_of_a_configuration_comes_back(path: Path) -> None:
    config = read(path, EVERYTHING)
    path.write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    assert matrix.read_config(path, BUILTIN) == config


@pytest.mark.parametrize("mode", ["default", "strict", "both"])
def test_every_mode_can_be_written_at_a_cell(path: Path, mode: str) -> None:
    (cell,) = matrix.expanded(read(path, cells(f"mode: {mode}")))
    assert cell.mode == mode


def test_the_mode_can_be_an_axis(path: Path) -> None:
    found = matrix.expanded(read(path, cells("matrix: {mode: [default, strict]}")))
    assert [(cell.name, cell.mode) for cell in found] == [
        ("cpu.default", "default"),
        ("cpu.strict", "strict"),
    ]
