"""What the images that come with reprokit are made of: pinned bases, locked wheels, and the digest of all of it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import InvalidInput
from reprokit.images.recipes import FOLDER, Recipe, Source, available, builtin, find, recipe, versions
from reprokit.model.config import Cell, Config, Image

BUILTIN = sorted(builtin())
DIGEST = "sha256:" + "0" * 64
RECIPE = Recipe("x", f"debian@{DIGEST}", "3.11", b"torch==2.13.0 --hash=sha256:00\n", b"FROM x\n")
# python and the first digits of the base's release: what the base's own packages have
PYTHON_OF = {"ubuntu22.04": "3.10", "ubuntu24.04": "3.12", "bookworm": "3.11"}
# the runtime that torch's wheels for a CUDA version ask for
CUDA_RUNTIME = re.compile(r"^nvidia-cuda-runtime(?:-cu12)?==(\d+\.\d+)\.", re.MULTILINE)


def lock(name: str) -> str:
    return recipe(builtin()[name]).requirements.decode()


def requirements(text: str) -> list[str]:
    """Each requirement on one line, with its hashes."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def test_every_cuda_of_the_readme_and_the_cpu_have_an_image() -> None:
    assert BUILTIN == ["cpu", "cuda-12.4", "cuda-12.6", "cuda-12.8", "cuda-13.0"]


@pytest.mark.parametrize("name", BUILTIN)
def test_a_base_is_pinned_and_says_where_it_was_seen(name: str) -> None:
    image = builtin()[name].image
    assert image.base is not None
    base, _, digest = image.base.partition("@")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
    assert image.seen is not None and re.search(r"\d", image.seen)
    assert [version for system, version in PYTHON_OF.items() if system in base] == [image.python]
    if name != "cpu":
        assert base.startswith(f"nvidia/cuda:{name.removeprefix('cuda-')}.")
        assert image.driver is not None
    else:
        assert image.driver is None


def test_the_digest_of_a_base_stands_in_one_place() -> None:
    text = (FOLDER / "images.yml").read_text()
    for name in BUILTIN:
        digest = str(builtin()[name].image.base).partition("@")[2]
        assert text.count(digest) == 1
        assert digest not in (FOLDER / "Dockerfile").read_text()


@pytest.mark.parametrize("name", BUILTIN)
def test_every_requirement_of_a_lock_has_one_version_and_hashes(name: str) -> None:
    found = requirements(lock(name))
    assert found
    for line in found:
        assert re.fullmatch(r"[a-z0-9\-]+==[^\s=]+(?: +--hash=sha256:[0-9a-f]{64})+ *", line), line
    assert {"torch", "numpy"} <= versions(lock(name).encode()).keys()


@pytest.mark.parametrize("name", BUILTIN)
def test_a_lock_names_no_index(name: str) -> None:
    assert "://" not in lock(name)
    assert not re.search(r"^\s*-(?!-hash)", lock(name), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in BUILTIN if name != "cpu"])
def test_the_wheels_of_an_image_are_for_its_cuda(name: str) -> None:
    assert CUDA_RUNTIME.findall(lock(name)) == [name.removeprefix("cuda-")]


def test_the_cpu_image_has_no_wheel_for_gpus() -> None:
    assert versions(lock("cpu").encode())["torch"].endswith("+cpu")
    assert not re.search("nvidia|triton|cuda", lock("cpu"))


def test_each_lock_belongs_to_an_image() -> None:
    assert {path.name for path in FOLDER.glob("*.lock")} == {
        str(source.image.requirements) for source in builtin().values()
    }


@pytest.mark.parametrize(
    "change",
    [
        {"base": f"debian@sha256:{'1' * 64}"},
        {"python": "3.12"},
        {"requirements": b"torch==2.13.0 --hash=sha256:01\n"},
        {"dockerfile": b"FROM x\nUSER 0\n"},
    ],
)
def test_whatever_is_in_an_image_is_in_its_digest(change: dict[str, str | bytes]) -> None:
    assert replace(RECIPE, **change).digest != RECIPE.digest


def test_equal_recipes_of_two_names_are_one_image() -> None:
    assert replace(RECIPE, name="y").digest == RECIPE.digest
    assert RECIPE.tag == f"reprokit/x:{RECIPE.digest.removeprefix('sha256:')[:12]}"


def test_the_digest_is_one_of_plain_json() -> None:
    content = {
        "base": RECIPE.base,
        "dockerfile": "FROM x\n",
        "python": "3.11",
        "requirements": RECIPE.requirements.decode(),
    }
    plain = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert RECIPE.digest == f"sha256:{hashlib.sha256(plain).hexdigest()}"


def test_a_configuration_adds_its_own(tmp_path: Path) -> None:
    own = Config(version=1, cells=[Cell(name="a")], images={"mine": Image(pull=f"x@{DIGEST}")})
    found = available(own, tmp_path)
    assert found.keys() == {*BUILTIN, "mine"}
    assert found["mine"].folder == tmp_path
    assert find(found, "mine").image.pull == f"x@{DIGEST}"


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r'no image "?cuda-12.9"?.*cuda-12.*the images are cpu, cuda-12.4'):
        find(builtin(), "cuda-12.9")


@pytest.mark.parametrize(("content", "problem"), [(None, "x.lock"), (b"\xff", "byte 0: not UTF-8")])
def test_a_lock_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "x.lock").write_bytes(content)
    image = Image(base=f"debian@{DIGEST}", python="3.11", requirements="x.lock")
    with pytest.raises(InvalidInput, match=problem):
        recipe(Source("x", image, tmp_path))


NAMES = st.from_regex(r"[a-z][a-z0-9\-]{0,20}", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9]{1,3}(?:\.[0-9]{1,3}){0,3}(?:\+[a-z0-9]{1,5})?", fullmatch=True)


@given(st.dictionaries(NAMES, VERSIONS, max_size=10))
def test_the_versions_of_a_lock_are_read_in_each_of_its_forms(packages: dict[str, str]) -> None:
    hashes = "--hash=sha256:" + "0" * 64
    lines = [f"{name}=={version}" for name, version in packages.items()]
    forms = (
        [f"{line} \\\n    {hashes} \\\n    {hashes}" for line in lines],
        [f"{line} {hashes}" for line in lines],
        [f"{line} ; python_version >= '3.11' \\\n    {hashes}" for line in lines],
    )
    for form in forms:
        assert versions("\n".join(["# a==b", *form]).encode()) == packages
