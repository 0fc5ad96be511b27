"""Distributions found by the names of their metadata, held against importlib.metadata."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from reprokit.environment import packages
from reprokit.environment.absence import Absences


def install(folder: Path, name: str, version: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir()


def test_finds_what_importlib_finds() -> None:
    expected: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        expected.setdefault(packages.normalised(distribution.metadata["Name"]), distribution.version)
    assert packages.find() == expected


def test_names_are_normalised_and_versions_whole(tmp_path: Path) -> None:
    for name, version in (
        ("nvidia_cublas_cu12", "12.8.4.1"),
        ("ruamel.yaml", "0.18.6"),
        ("torch", "2.13.0+cpu"),
    ):
        install(tmp_path, name, version)
    (tmp_path / "Foo_Bar-1.0-py3.11.egg-info").write_text("Name: Foo_Bar\nVersion: 1.0\n")
    assert packages.find([str(tmp_path)]) == {
        "foo-bar": "1.0",
        "nvidia-cublas-cu12": "12.8.4.1",
        "ruamel-yaml": "0.18.6",
        "torch": "2.13.0+cpu",
    }


def test_a_source_tree_tells_its_version_inside(tmp_path: Path) -> None:
    (tmp_path / "my_model.egg-info").mkdir()
    (tmp_path / "my_model.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: my_model\nVersion: 0.3\n"
    )
    (tmp_path / "broken.egg-info").mkdir()
    assert packages.find([str(tmp_path)]) == {"my-model": "0.3"}


def test_the_first_folder_wins_and_missing_ones_do_not_matter(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    install(first, "numpy", "2.0.0")
    install(second, "NumPy", "1.26.4")
    assert packages.find([str(tmp_path / "nowhere"), str(first), str(second)]) == {"numpy": "2.0.0"}


def test_a_hidden_package_is_still_seen_in_the_hash(tmp_path: Path) -> None:
    install(tmp_path, "our_secret_project", "1.0")
    before = packages.find([str(tmp_path), *sys.path])
    after = {**before, "our-secret-project": "1.1"}
    assert "our-secret-project" not in packages.collect(before, "private")
    assert packages.collect(before, "full")["our-secret-project"] == "1.0"
    first, second = (packages.collect_python(Absences(), found) for found in (before, after))
    assert first["packages_count"] == second["packages_count"] == len(before)
    assert first["packages_sha256"] != second["packages_sha256"]
