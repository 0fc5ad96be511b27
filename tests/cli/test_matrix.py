"""`reprokit matrix`, as a workflow's `fromJSON` takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DIGEST = "sha256:" + "0" * 64
CONFIG = f"""
version: 1
images:
  ours: {{pull: "b:1@{DIGEST}"}}
cells:
  - {{name: cpu, runs-on: [ubuntu-24.04], image: cpu, level: process}}
  - {{name: gpu, runs-on: [self-hosted, gpu], device: cuda, image: cuda-12.8}}
  - {{name: job, image: ours, engine: local}}
  - {{name: seeds, matrix: {{seed: [1, 2]}}}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "reprokit.yml"
    path.write_text(CONFIG)
    return path


def test_each_cell_is_an_entry_with_what_its_job_needs(run, config):
    done = run("matrix", "--config", config)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    local = {"runs-on": ["self-hosted"], "device": "cpu", "engine": "local", "level": "bit"}
    assert json.loads(done.stdout) == {
        "include": [
            {
                "cell": "cpu",
                "runs-on": ["ubuntu-24.04"],
                "device": "cpu",
                "engine": "docker",
                "level": "process",
                "image": "cpu",
            },
            {
                "cell": "gpu",
                "runs-on": ["self-hosted", "gpu"],
                "device": "cuda",
                "engine": "docker",
                "level": "bit",
                "image": "cuda-12.8",
            },
            {"cell": "job", "image": "ours", "container": f"b:1@{DIGEST}", **local},
            {"cell": "seeds.1", **local},
            {"cell": "seeds.2", **local},
        ]
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--include", "seeds.*"], ["seeds.1", "seeds.2"]),
        (["--exclude", "seeds.*", "--exclude", "job"], ["cpu", "gpu"]),
        (["--include", "?pu", "--include", "job", "--exclude", "gpu"], ["cpu", "job"]),
    ],
)
def test_cells_are_chosen_by_name(run, config, options, expected):
    done = run("matrix", "--config", config, *options)
    assert [entry["cell"] for entry in json.loads(done.stdout)["include"]] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--include", "cup"], "no cell is like 'cup': the cells are cpu, gpu, job, seeds.1, seeds.2"),
        (["--exclude", "x*"], "no cell is like 'x*'"),
        (["--exclude", "*"], "no cell is left, and a gate over no cell would always pass"),
    ],
)
def test_a_choice_that_would_gate_nothing_is_an_error(run, config, options, words):
    done = run("matrix", "--config", config, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_an_error_names_no_hundred_cells(run, config):
    config.write_text(f"version: 1\ncells: [{{name: s, matrix: {{seed: {list(range(100))}}}}}]\n")
    done = run("matrix", "--config", config, "--include", "x")
    assert "the cells are s.0, s.1," in done.stderr
    assert done.stderr.endswith("s.19 and 80 more\n")


def test_a_broken_configuration_prints_no_matrix(run, config):
    config.write_text("version: 1\ncells:\n  - name: cpu\n    lvel: bit\n")
    done = run("matrix", "--config", config)
    assert (done.returncode, done.stdout) == (2, "")
    assert f'{config}: line 4, column 5: /cells/0/lvel: there is no key "lvel" here' in done.stderr
