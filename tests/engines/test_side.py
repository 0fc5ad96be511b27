"""The staged probe side: whole by itself, and nothing of the host side."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reprokit.engines import side
from reprokit.environment.source import measuring_code

INSTALLED = Path(side.__file__).resolve().parent.parent


@pytest.fixture
def staged() -> Iterator[Path]:
    before = os.umask(0o077)  # of a careful user
    try:
        with side.staged() as folder:
            yield folder
    finally:
        os.umask(before)


def alone(folder: Path, program: str) -> str:
    """Output of a program in an interpreter that has the standard library and `folder` alone."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_user_can_read_it(staged: Path) -> None:
    assert staged.stat().st_mode & 0o777 == 0o755
    for entry in staged.rglob("*"):
        wanted = 0o755 if entry.is_dir() else 0o644
        assert stat.S_IMODE(entry.lstat().st_mode) == wanted, entry


def test_it_is_gone_afterwards() -> None:
    with side.staged() as folder:
        assert (folder / "reprokit" / "probe" / "lfq" / "digits.csv.gz").is_file()
    assert not folder.exists()


def test_it_holds_the_probe_side_alone(staged: Path) -> None:
    assert {entry.name for entry in staged.iterdir()} == {"reprokit", "pynvml.py", "reprokit-probe-side"}
    package = staged / "reprokit"
    assert {entry.name for entry in package.iterdir()} == {
        "__init__.py",
        "launch.py",
        "seeding.py",
        "model",
        "environment",
        "probe",
    }
    assert {entry.name for entry in (package / "model").iterdir()} == {"__init__.py", "canonical.py"}
    assert list(staged.rglob("__pycache__")) == []


def imported(file: Path) -> Iterator[str]:
    """Full names of the modules that a file may import, at its top or inside a function."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, file
            yield node.module
            for name in node.names:  # `from reprokit.probe import lfq` imports a module
                there = INSTALLED.parent.joinpath(*node.module.split("."), name.name)
                if there.is_dir() or there.with_suffix(".py").is_file():
                    yield f"{node.module}.{name.name}"


def test_it_imports_nothing_that_is_not_in_it(staged: Path) -> None:
    given = {*sys.stdlib_module_names, "torch", "numpy"}
    checked = 0
    for file in (staged / "reprokit").rglob("*.py"):
        for name in imported(file):
            checked += 1
            there = staged.joinpath(*name.split("."))
            assert name.partition(".")[0] in given or there.is_dir() or there.with_suffix(".py").is_file(), (
                f"{file.relative_to(staged)} imports {name}"
            )
    assert checked > 100


def test_its_modules_start_without_any_package(staged: Path) -> None:
    program = """
import json, reprokit.environment.__main__, reprokit.probe.__main__, reprokit.launch, pynvml
print(json.dumps({name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", 0)}))
"""
    loaded = json.loads(alone(staged, program))
    roots = {name.partition(".")[0] for name in loaded}
    assert roots - set(sys.stdlib_module_names) - {"__main__"} == {"reprokit", "pynvml"}
    assert all(file.startswith(str(staged)) for name, file in loaded.items() if name.startswith("reprokit"))


def test_the_measuring_code_has_the_same_hash_there(staged: Path) -> None:
    program = "from reprokit.environment.source import measuring_code; print(measuring_code())"
    assert alone(staged, program) == measuring_code()


def test_a_process_from_there_starts_others_from_there(staged: Path) -> None:
    program = "from reprokit import launch; print(*launch.command('m')[-2:])"
    assert alone(staged, program) == f"{staged} m"


def test_the_folder_around_it_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with side.staged() as folder:
        assert folder.parent == tmp_path
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
