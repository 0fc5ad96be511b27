"""Loaded libraries: names, build ids held against readelf, collisions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.environment import elf, libraries
from reprokit.environment.absence import Absences


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("libgomp-a34b3233.so.1", "libgomp.so.1"),
        ("libgomp-a34b3233.so.1.0.0", "libgomp.so.1"),
        ("libgfortran-040039e1-0352e75f.so.5.0.0", "libgfortran.so.5"),
        ("libscipy_openblas64_-32a4b2a6.so", "libscipy_openblas64_.so"),
        ("libcublasLt.so.12", "libcublasLt.so.12"),
        ("libcaffe2_nvrtc.so", "libcaffe2_nvrtc.so"),
        ("libc-2.31.so", "libc-2.31.so"),
        ("_C.cpython-311-x86_64-linux-gnu.so", "_C.so"),
        ("_C.abi3.so", "_C.so"),
    ],
)
def test_names_lose_what_a_wheel_added(file: str, name: str) -> None:
    assert libraries.normalised_name(file) == name


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_identity_is_what_readelf_says() -> None:
    mapped = libraries.mapped()
    assert len(mapped) > 3
    for path in mapped:
        said = subprocess.run(["readelf", "-nd", path], capture_output=True, text=True, check=False).stdout
        build_id = re.search(r"Build ID: ([0-9a-f]+)", said)
        soname = re.search(r"soname: \[(.+)\]", said)
        expected = (build_id[1] if build_id else None, soname[1] if soname else None)
        assert tuple(elf.identify(path)) == expected, path


def test_a_file_that_is_no_elf_has_no_identity(tmp_path: Path) -> None:
    (tmp_path / "libx.so").write_bytes(b"INPUT(libc.so.6)")
    assert elf.identify(str(tmp_path / "libx.so")) == elf.Identity(None, None)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds a library into a folder of packages, and makes it appear as mapped."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    site = tmp_path / "site-packages"
    paths: list[str] = []
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(libraries, "mapped", lambda: paths)

    def built(relative: str, soname: str, *options: str) -> Path:
        target = site / relative if not relative.startswith("/") else tmp_path / relative[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        source = tmp_path / "empty.c"
        source.write_text(f"int in_{len(paths)}(void) {{ return {len(paths)}; }}\n")
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", *options, "-o", target, source], check=True
        )
        paths.append(str(target))
        return target

    return built


def test_two_copies_of_a_library_are_kept_apart(build: Any) -> None:
    build("scikit_learn.libs/libgomp-a34b3233.so.1.0.0", "libgomp-a34b3233.so.1.0.0", "-Wl,--build-id=0xaa")
    build("torch/lib/libgomp.so.1", "libgomp.so.1", "-Wl,--build-id=0xbb")
    collected = libraries.collect(Absences(), "private")
    assert {name: (library["path"], library["build_id"]) for name, library in collected.items()} == {
        "libgomp.so.1": ("torch/lib/libgomp.so.1", "bb"),
        "scikit_learn.libs/libgomp.so.1": ("scikit_learn.libs/libgomp-a34b3233.so.1.0.0", "aa"),
    }


def test_a_library_without_build_id_is_known_by_its_hash(build: Any) -> None:
    build("numpy.libs/libm1.so.1.2", "libm1.so.1", "-Wl,--build-id=none")
    (library,) = libraries.collect(Absences(), "private").values()
    assert library["build_id"] is None
    assert library["version"] == "1.2"
    assert re.fullmatch("sha256:[0-9a-f]{64}", library["sha256"])


def test_paths_outside_of_packages_are_shown_only_with_full_detail(build: Any) -> None:
    path = build("/alice/lib/libown.so.2.5", "libown.so.2")
    (private,) = libraries.collect(Absences(), "private").items()
    assert private[0] == "libown.so.2"
    assert private[1]["path"] == "libown.so.2.5"
    assert libraries.collect(Absences(), "full")["libown.so.2"]["path"] == str(path)


def test_only_what_computes_is_kept(build: Any) -> None:
    tag = "cpython-311-x86_64-linux-gnu"
    modules = (
        f"msgspec/_core.{tag}.so",
        f"scipy/_x.{tag}.so",
        "torchvision/_C.so",
        f"flash_attn_2_cuda.{tag}.so",
    )
    for relative in ("libssl.so.3", "nvidia/cublas/lib/libcublas.so.12", *modules):
        build(relative, Path(relative).name)
    assert list(libraries.collect(Absences(), "private")) == [
        "flash_attn_2_cuda/flash_attn_2_cuda.so",
        "libcublas.so.12",
        "scipy/_x.so",
        "torchvision/_C.so",
    ]


def test_a_library_that_was_deleted_leaves_its_reason(build: Any) -> None:
    build("torch/lib/libgone.so", "libgone.so").unlink()
    absences = Absences()
    assert libraries.collect(absences, "private")["libgone.so"]["build_id"] is None
    assert absences.entries() == [
        {
            "field": 'libraries["libgone.so"].build_id',
            "state": "unavailable",
            "reason": "FileNotFoundError: No such file or directory",
        }
    ]
