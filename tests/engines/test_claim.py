"""The container around this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from reprokit.engines import claim
from reprokit.errors import ProbeFailed

ID = "0123456789abcdef" * 4
OTHER = "f" * 64
DIGEST, ANOTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
MOUNTS = {
    "docker": f"""\
620 601 0:31 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/{OTHER}
630 620 8:1 /var/lib/docker/containers/{OTHER}/x /logs ro - ext4 /dev/sda1 rw
631 620 8:1 /var/lib/docker/containers/{ID}/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/sda1 rw
""",
    "podman": f"""\
1 0 0:1 / / rw - overlay overlay rw
2 1 0:25 /containers/storage/overlay-containers/{ID}/userdata/hostname /etc/hostname rw,nosuid - tmpfs tmpfs rw
""",
}


@pytest.mark.parametrize("runtime", MOUNTS)
def test_the_id_stands_in_the_mounts(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS[runtime])
    assert claim.own_id(tmp_path) == ID


def test_the_id_stands_in_the_control_group_where_no_mount_tells(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("1 0 0:1 / / rw - overlay overlay rw\n")
    (tmp_path / "cgroup").write_text(f"0::/system.slice/docker-{ID}.scope\n")
    assert claim.own_id(tmp_path) == ID
    (tmp_path / "cgroup").write_text(f"5:cpu:/docker/{ID}\n")
    assert claim.own_id(tmp_path) == ID


def test_a_pod_tells_no_id(tmp_path: Path) -> None:
    pod = "2 1 8:1 /var/lib/kubelet/pods/8e1b/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
    (tmp_path / "mountinfo").write_text(pod)
    assert claim.own_id(tmp_path) is None


@pytest.fixture
def contained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "runtime", lambda: "docker")
    monkeypatch.setattr(claim, "own_id", lambda: ID)


def test_outside_of_containers_no_claim_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "runtime", lambda: "none")
    with pytest.raises(ProbeFailed, match="this process runs in none: give the job a `container:`"):
        claim.check(DIGEST)


@pytest.mark.usefixtures("contained", "unreachable")
def test_where_no_engine_answers_it_is_only_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert claim.check(DIGEST) is False


def test_a_container_without_id_is_only_claimed(contained: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "own_id", lambda: None)
    assert claim.check(DIGEST) is False


@pytest.mark.usefixtures("contained")
@pytest.mark.parametrize("found", [[DIGEST], [ANOTHER, DIGEST]])
def test_the_digest_of_the_image_confirms(found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_digests", lambda container: found)
    assert claim.check(DIGEST) is True


@pytest.mark.usefixtures("contained")
@pytest.mark.parametrize(("found", "said"), [([ANOTHER], ANOTHER), ([], "no digest")])
def test_another_image_is_refused(found: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_digests", lambda container: found)
    with pytest.raises(ProbeFailed) as refused:
        claim.check(DIGEST)
    assert DIGEST in str(refused.value) and said in str(refused.value)
