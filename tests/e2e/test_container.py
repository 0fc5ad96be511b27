"""The container of a probe on a real engine: what it can do, and what is left when it ends badly."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from docker import DockerClient

from reprokit.compare import compare
from reprokit.engines import container, local, owner
from reprokit.engines import docker as engines
from reprokit.engines.job import Job
from reprokit.errors import ProbeFailed
from reprokit.images.prepare import Prepared, prepare
from reprokit.images.recipes import Source
from reprokit.model.config import Image, Limits
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.reading import decode, parse_json
from tests.e2e import engine as parts
from tests.e2e.conftest import needed
from tests.e2e.engine import ROOT, docker
from tests.e2e.test_images import configured

pytestmark = pytest.mark.slow
SECRETS = {"GITHUB_TOKEN": "ghs_planted0123456789", "AWS_SECRET_ACCESS_KEY": "planted-hunter2"}
LIMITS = Limits(memory="256m", cpus=1.5, pids=64, shm="32m")
HANGS = "import signal; print('it hangs', flush=True); signal.pause()"

LOOK = """
import json, os, resource, signal, socket, sys
sys.path.insert(0, "/reprokit")
from reprokit.environment import system
from reprokit.environment.absence import Absences

def writable(folder):
    try:
        with open(os.path.join(folder, "x"), "w") as stream:
            stream.write("x")
        os.unlink(stream.name)
        return True
    except OSError:
        return False

def connects(address):
    with socket.socket() as one:
        try:
            one.connect(address)
            return True
        except OSError:
            return False

def children():
    count = 0
    try:
        while count < 1000:
            if os.fork() == 0:
                signal.pause()
            count += 1
    except OSError:
        return count
    return count

def lines(path):
    with open(path) as stream:
        return stream.read().splitlines()

mounts = [line.split() for line in lines("/proc/self/mounts")]
folders = ["/", "/usr", "/etc", "/root", "/home", "/var/tmp", "/reprokit", "/dev", "/sys", "/proc"]
shm = os.statvfs("/dev/shm")
found = {
    "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups()],
    "status": dict(line.split(":\\t", 1) for line in lines("/proc/self/status") if ":\\t" in line),
    "interfaces": os.listdir("/sys/class/net"),
    "routes": lines("/proc/net/route")[1:],
    "connects": connects(("127.0.0.1", int(os.environ["PORT"]))),
    "writable": sorted({each for each in [*folders, *(m[1] for m in mounts)] if writable(each)}),
    "temporary": next(m[3].split(",") for m in mounts if m[1] == "/tmp"),
    "sockets": [path for path in ("/var/run/docker.sock", "/run/docker.sock") if os.path.exists(path)],
    "environment": dict(os.environ),
    "first": lines("/proc/1/comm"),
    "where": [os.getcwd(), socket.gethostname()],
    "shm": shm.f_frsize * shm.f_blocks,
    "limits": system.collect(Absences()),
    "children": children(),
    "file": resource.getrlimit(resource.RLIMIT_FSIZE),
}
with open(sys.argv[1], "w") as stream:
    json.dump(found, stream)
"""


@dataclass(frozen=True)
class Program(Job):
    """A run of a program in place of the probe; it gets the path of the document as its argument."""

    def command(self, side: str, output: str | None = None) -> list[str]:
        """The command line."""
        return [*self.prefix, self.python, *self.arguments, str(output)]


def program(image: Prepared, text: str, timeout: float = 120, **variables: str) -> Program:
    return Program(["-c", text], variables, [], image.python, timeout)


def run(
    job: Job,
    image: str,
    limits: Limits = LIMITS,
    gpus: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> bytes:
    with engines.connected() as client:
        return container.run(client, job, image, limits, gpus, say)


@pytest.fixture(autouse=True)
def nothing_is_left(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test no container, temporary folder or file of another user is there."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield
    assert containers(engine) == []
    assert list(temporary.iterdir()) == []
    assert {entry.lstat().st_uid for entry in tmp_path.rglob("*")} <= {os.getuid()}


def containers(engine: str) -> list[str]:
    """Names of the containers that runs have started."""
    return docker(
        engine, "ps", "--all", "--filter", "label=io.reprokit.run", "--format", "{{.Names}}"
    ).split()


def test_it_can_do_nothing_but_measure(
    engine: str, registry: str, probe_image: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    # what the docker command would set in each container
    proxies = {"default": {"httpProxy": f"http://user:{next(iter(SECRETS.values()))}@proxy:3128"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    said: list[str] = []
    job = program(probe_image, LOOK, MKL_CBWR="COMPATIBLE", PORT=registry.rpartition(":")[2])
    found = json.loads(run(job, probe_image.id, say=said.append))
    uid, gid = container.user()
    assert found["ids"][:4] == [uid, uid, gid, gid]
    assert 0 not in found["ids"]
    status = found["status"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert (found["interfaces"], found["routes"], found["connects"]) == (["lo"], [], False)
    assert set(found["writable"]) - {"/dev/shm", "/dev/mqueue"} == {"/tmp", "/out"}
    assert {"nosuid", "nodev"} <= set(found["temporary"])
    assert found["sockets"] == []
    assert set(found["environment"]) - {"PATH", "HOME", "HOSTNAME", "LC_CTYPE"} == {"MKL_CBWR", "PORT"}
    assert found["first"] == ["docker-init"]
    assert found["where"] == ["/tmp", "reprokit"]
    assert found["shm"] == 32 * 2**20
    assert found["limits"]["memory_limit_bytes"] == 256 * 2**20
    assert found["limits"]["cpu_limit"] == 1.5
    assert 0 < found["children"] < 64
    assert found["file"] == [256 * 2**20] * 2
    assert not any(secret in json.dumps(found) + "".join(said) for secret in SECRETS.values())


def test_its_lines_are_heard_while_it_runs(probe_image: Prepared) -> None:
    text = "import os, sys; [os.write(2, b'one\\ntw'), os.write(1, b'o\\nthree')]; open(sys.argv[1], 'w').close()"
    said: list[str] = []
    assert run(program(probe_image, text), probe_image.id, say=said.append) == b""
    assert sorted("".join(said)) == sorted("onetwothree")


def test_a_failure_is_told_by_its_last_line(probe_image: Prepared) -> None:
    with pytest.raises(ProbeFailed, match="ended with exit code 7: the last word"):
        run(program(probe_image, "import sys; print('the last word'); sys.exit(7)"), probe_image.id)


def test_a_link_out_of_the_folder_is_no_document(probe_image: Prepared) -> None:
    text = "import os, sys; os.symlink('/etc/passwd', sys.argv[1])"
    with pytest.raises(ProbeFailed, match="the probe left no document: "):
        run(program(probe_image, text), probe_image.id)


def test_too_little_memory_is_told_as_such(probe_image: Prepared) -> None:
    text = "import sys; held = bytearray(b'x') * 2**30; open(sys.argv[1], 'wb').write(held)"
    with pytest.raises(ProbeFailed, match="needed more memory than `limits: memory` of the cell allows"):
        run(program(probe_image, text), probe_image.id)


def test_a_timeout_kills_and_removes(probe_image: Prepared) -> None:
    with pytest.raises(ProbeFailed, match="took longer than 1 s, the cell's timeout, and was ended"):
        run(program(probe_image, HANGS, timeout=1), probe_image.id)


def test_an_interrupt_kills_and_removes(engine: str, probe_image: Prepared) -> None:
    def say(line: str) -> None:
        assert line == "it hangs"
        assert len(containers(engine)) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(program(probe_image, HANGS), probe_image.id, say=say)


@pytest.mark.parametrize(
    ("gpus", "missing"),
    [
        (["all"], "the container engine knows no NVIDIA runtime: install the NVIDIA container toolkit"),
        (["0"], "the container engine knows no NVIDIA runtime: install the NVIDIA container toolkit"),
        (["nvidia.com/gpu=all"], "the container engine has no CDI|no CDI specification names this device"),
    ],
)
def test_a_gpu_that_the_engine_cannot_give_is_infrastructure(
    engine: str, probe_image: Prepared, gpus: list[str], missing: str
) -> None:
    if "nvidia" in docker(engine, "info", "--format", "{{json .Runtimes}}"):
        pytest.skip("this engine gives GPUs")
    with pytest.raises(ProbeFailed, match=missing) as failed:
        run(program(probe_image, HANGS), probe_image.id, gpus=gpus)
    assert failed.value.exit_code == 3


def test_an_engine_that_sees_other_files_is_told(
    probe_image: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def elsewhere() -> Iterator[Path]:
        yield Path("/folder-of-another-machine")

    monkeypatch.setattr(container.side, "staged", elsewhere)
    with pytest.raises(ProbeFailed, match="sees none of this machine's files: measure with `engine: local`"):
        run(program(probe_image, HANGS), probe_image.id)


def hanging_gate(folder: Path, source: Source) -> list[str]:
    """`reprokit ci` of a cell whose container says so and hangs."""
    path = configured(folder, source)
    says = "echo it hangs in $HOSTNAME; exec sleep infinity"
    cell = {"name": "hangs", "image": source.name, "exec": ["sh", "-c", says]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": [cell]}))
    output = str(folder / "output")
    return [sys.executable, "-m", "reprokit", "ci", "--config", str(path), "--cell", "hangs", "-o", output]


@contextmanager
def hanging(folder: Path, source: Source) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        hanging_gate(folder, source), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as gate:
        try:
            assert gate.stderr is not None
            said = []
            for line in gate.stderr:
                said.append(line)
                if line == "it hangs in reprokit\n":
                    break
            else:
                pytest.fail("".join(said))
            yield gate
        finally:
            gate.kill()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_cancelled_gate_kills_and_removes(
    engine: str, probe_image: Prepared, source: Source, tmp_path: Path, end: signal.Signals
) -> None:
    with hanging(tmp_path, source) as gate:
        (name,) = containers(engine)
        assert name.startswith("reprokit-hangs-")
        gate.send_signal(end)
        assert gate.wait() == 130
        assert containers(engine) == []


def test_what_a_killed_gate_left_is_removed_by_the_next_and_a_living_ones_is_not(
    engine: str, probe_image: Prepared, source: Source, tmp_path: Path
) -> None:
    for folder in ("killed", "living"):
        (tmp_path / folder).mkdir()
    with hanging(tmp_path / "killed", source) as killed, engines.connected() as client:
        (left,) = containers(engine)
        assert engines.sweep(client) == []
        killed.kill()
        killed.wait()
        assert containers(engine) == [left]
        with hanging(tmp_path / "living", source) as living:
            (other,) = containers(engine)  # the second gate has removed what the first one left
            assert other != left
            assert (
                f"removed the container {left}, which a killed run had left\n"
                in (tmp_path / "living" / "output" / "probe.log").read_text()
            )
            assert engines.sweep(client) == []
            assert docker(engine, "inspect", "--format", "{{.State.Running}}", other) == "true"
            living.send_signal(signal.SIGTERM)
            living.wait()
    with owner.temporary():  # the next run also removes the folders of the one that was killed
        pass


def fingerprint(data: bytes) -> Fingerprint:
    return decode(parse_json(data, "the probe's output"), Fingerprint, "the probe's output")


def probe(python: str, told: dict[str, Any] | None, profile: str) -> Job:
    known = {"image": told, "commit": "c" * 40, "dirty": False}
    return Job(["--profile", profile], {}, [], python, 600, known)


def in_container(image: Prepared, profile: str) -> Fingerprint:
    return fingerprint(run(probe(image.python, image.told, profile), image.id, Limits()))


@pytest.fixture(scope="module")
def same_wheels(requirements: Path, wheelhouse: Path) -> Path:
    """An interpreter of this machine with the very wheels of the image."""
    python = parts.CACHE / f"venv-{wheelhouse.name.removeprefix('wheels-')}" / "bin" / "python"
    ready = python.parents[1] / "ready"
    if not ready.exists():
        with needed():
            made = [parts.python_of_the_base(), "-m", "venv", "--clear", str(python.parents[1])]
        subprocess.run(made, check=True)
        install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--require-hashes"]
        subprocess.run(
            [python, *install, "--find-links", str(wheelhouse), "-r", str(requirements)], check=True
        )
        ready.touch()
    return python


def from_wheels(document: Fingerprint) -> dict[str, Any]:
    """The loaded libraries that lie in packages, which are the same wheels wherever they are installed."""
    return {name: each for name, each in document.libraries.items() if "/" in each.path}


def test_two_runs_agree_in_every_bit_and_a_run_on_this_machine_names_what_differs(
    probe_image: Prepared, same_wheels: Path
) -> None:
    one, two = in_container(probe_image, "full"), in_container(probe_image, "full")
    assert one.digest == two.digest
    assert [part.name for part in one.run.parts] == [
        "invariant", "rng", "data", "weights", "quantize", "layers", "kernel", "batch", "sampling", "training",
        "collective", "metrics",
    ]  # fmt: skip
    assert {stage.reason for stage in one.stages if stage.state != "ok" and stage.sha256 is None} == {
        "needs a GPU"
    }
    assert compare(one, two).verdict.level == "bit"
    assert one.image is not None and one.image.recipe == probe_image.told["recipe"]
    assert (one.source.commit, one.source.dirty) == ("c" * 40, False)
    assert one.run.other_variables == two.run.other_variables
    assert one.run.other_variables.count <= 4  # PATH, HOME, HOSTNAME, LC_CTYPE

    here = fingerprint(local.run(probe(str(same_wheels), None, "full"), lambda line: None))
    found = compare(here, one)
    assert (found.verdict.level, found.verdict.state) == ("bit", "holds")
    assert here.source == one.source
    assert len(from_wheels(here)) > 3
    assert from_wheels(here) == from_wheels(one)
    changed = {change.field for change in found.environment}
    assert {"image.recipe", "image.base", "system.memory_limit_bytes"} <= changed
    # the interpreter and the system around it are the image's own; everything that computes is the same
    assert {re.split(r"[.\[]", field)[0] for field in changed} <= {
        "image",
        "system",
        "python",
        "libraries",
        "run",
    }


def test_of_two_images_with_another_numpy_numpy_and_the_image_are_named(
    probe_image: Prepared, other_image: Prepared
) -> None:
    found = compare(in_container(probe_image, "quick"), in_container(other_image, "quick"))
    changed = {change.field: change for change in found.environment}
    assert {"packages.numpy", "numpy.version", "image.recipe", "image.name"} <= changed.keys()
    assert (changed["packages.numpy"].base, changed["packages.numpy"].head) == ("2.4.6", "2.2.6")
    assert not any(field.startswith(("torch.", "system.", "cpu.", "variables.")) for field in changed)
    first = next(iter(changed))
    assert "numpy" in first or "openblas" in first, "what moves most stands first"


@pytest.fixture
def host_side() -> Iterator[Path]:
    """The host side as any user and any interpreter can import it: pure Python, in a folder that all can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        for module in ("docker", "requests", "urllib3", "idna", "certifi", "charset_normalizer", "reprokit"):
            (source,) = importlib.import_module(module).__path__
            shutil.copytree(source, Path(name, module), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_rights_runs_it_as_himself(
    engine: str, probe_image: Prepared, host_side: Path
) -> None:
    socket = Path(engine.removeprefix("unix://"))
    if not socket.is_socket():
        pytest.skip("the engine has no socket on this machine")
    script = f"""
import types
from reprokit.engines import container, docker, job
class Program(job.Job):
    def command(self, side, output):
        return [self.python, "-c", TEXT, output]
TEXT = "import os, sys; os.mkdir('/out/x', 0o700); open(sys.argv[1], 'w').write(str([os.getuid(), os.getgid()]))"
limits = types.SimpleNamespace(memory="256m", cpus=None, pids=64, shm="32m")
program = Program([], {{}}, [], {probe_image.python!r}, 60)
with docker.connected() as client:
    print(container.run(client, program, {probe_image.id!r}, limits, [], print).decode())
"""
    done = subprocess.run(
        ["/usr/bin/python3", "-B", "-c", script],
        user=12345,
        group=12345,
        extra_groups=[socket.stat().st_gid],
        env={"DOCKER_HOST": engine, "PYTHONPATH": str(host_side), "TMPDIR": "/tmp"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "[12345, 12345]\n"), done.stderr
    assert [entry for entry in Path("/tmp").iterdir() if entry.lstat().st_uid == 12345] == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_gate_of_a_user_without_rights(engine: str, probe_image: Prepared, source: Source) -> None:
    socket = Path(engine.removeprefix("unix://"))
    if not socket.is_socket():
        pytest.skip("the engine has no socket on this machine")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        home, work = Path(name), Path(name, "work")
        for folder in ("reprokit", "docker", "bin"):
            shutil.copytree(ROOT / folder, home / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "action.lock", home)
        subprocess.run(["/usr/bin/python3", home / "bin/setup-venv", home / "venv"], check=True)
        work.mkdir()
        image = {key: value for key, value in msgspec.to_builtins(source.image).items() if value is not None}
        image |= {"wheels": "wheels"}  # it is built already: no wheel is looked for
        cell = {"name": "cpu", "image": "ours", "profile": "quick"}
        config = {"version": 1, "cells": [cell], "images": {"ours": image}}
        (work / "reprokit.yml").write_text(json.dumps(config))
        shutil.copy(source.folder / str(source.image.requirements), work)
        subprocess.run(["chmod", "-R", "a+rX", home], check=True)
        subprocess.run(["chown", "-R", "12345:12345", work], check=True)
        done = subprocess.run(
            [home / "venv/bin/python", "-I", "-m", "reprokit", "ci", "--cell", "cpu"],
            user=12345,
            group=12345,
            extra_groups=[socket.stat().st_gid],
            env={"DOCKER_HOST": engine, "HOME": str(work)},
            cwd=work,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 5, done.stderr
        assert "image ours: " in done.stderr.splitlines()[0]
        fingerprint = json.loads((work / ".reprokit/runs/cpu/fingerprint.json").read_text())
        assert fingerprint["image"]["recipe"] == probe_image.told["recipe"]
        left = [entry for entry in work.rglob("*") if entry.lstat().st_uid != 12345]
        assert left == []
    assert [entry for entry in Path("/tmp").iterdir() if entry.lstat().st_uid == 12345] == []


def test_the_image_of_a_jobs_container_is_checked(
    engine: str, client: DockerClient, base_image: str, host_side: Path
) -> None:
    digest, another = base_image.partition("@")[2], "sha256:" + "1" * 64
    script = f"""
from reprokit.engines import claim
from reprokit.errors import ProbeFailed
print(claim.check({digest!r}))
try:
    claim.check({another!r})
except ProbeFailed as error:
    print(error)
"""
    image = prepare(client, Source("ready", Image(pull=base_image), Path()), lambda line: None)

    def said(*volumes: str) -> list[str]:
        output = client.containers.run(
            image.id,
            ["python3", "-B", "-W", "ignore", "-c", script],
            volumes=[f"{host_side}:/host:ro", *volumes],
            environment={"PYTHONPATH": "/host"},
            network_mode="none",
            remove=True,
        )
        return str(output.decode()).splitlines()

    assert said(f"{engine.removeprefix('unix://')}:/var/run/docker.sock") == [
        "True",
        f"the cell claims an image of {another}, this container's has {digest}: let the job's `container:` name the "
        "image of the cell",
    ]
    assert said() == ["False"]
