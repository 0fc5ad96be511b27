"""The whole document, from an interpreter of its own: requested against effective, privacy, sameness."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.model.environment import EnvironmentReport
from reprokit.model.reading import decode, parse_json

Report = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
NUMERIC = ("ATEN_", "MKL_", "OMP_", "ONEDNN_", "DNNL_", "OPENBLAS_")
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "pynvml"):
            raise ModuleNotFoundError("blocked", name=name)
sys.meta_path.insert(0, Blocked())
from reprokit.environment.__main__ import main
main([])
"""


def printed(*arguments: str, code: str | None = None, **variables: str) -> bytes:
    """What `python -m reprokit.environment` prints with `variables` set."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC)}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]),
        **variables,
    }
    start = ["-c", code] if code else ["-m", "reprokit.environment"]
    done = subprocess.run(
        [sys.executable, *start, *arguments], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="session")
def plain() -> Report:
    """The document without any variable set; needs torch."""
    pytest.importorskip("torch")
    return json.loads(printed())  # type: ignore[no-any-return]


def absent(report: Report, field: str) -> str | None:
    return next((entry["reason"] for entry in report["absent"] if entry["field"] == field), None)


@pytest.mark.torch
def test_the_document_is_valid_and_says_what_is_not_there(plain: Report) -> None:
    report = decode(plain, EnvironmentReport, "environment")
    assert report.torch is not None
    assert report.numpy is not None
    assert report.torch.build.config_sha256 is not None
    assert absent(plain, "torch.inductor") == "torch._inductor is not imported in this process"
    unread = [entry for entry in plain["absent"] if entry["state"] == "unavailable"]
    assert all(entry["field"].startswith(("gpus", "driver", "source", "cpu", "torch")) for entry in unread)


@pytest.mark.torch
def test_two_runs_give_one_digest(plain: Report) -> None:
    again = json.loads(printed())
    if again["source"] == plain["source"]:  # a working tree may be edited while its tests run
        assert again["digest"] == plain["digest"]
    assert {**again, "digest": "", "run": {}, "source": {}} == {
        **plain,
        "digest": "",
        "run": {},
        "source": {},
    }


@pytest.mark.torch
def test_requested_and_effective_are_recorded_apart(plain: Report) -> None:
    lowered = json.loads(printed(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE", OMP_NUM_THREADS="1"))
    assert lowered["variables"]["ATEN_CPU_CAPABILITY"] == "default"
    assert lowered["torch"]["cpu_capability"] in ("DEFAULT", "NO AVX")
    assert lowered["cpu"] == plain["cpu"]
    assert lowered["torch"]["num_threads"] == 1
    if plain["torch"]["mkl_cbwr"] is not None:
        assert plain["torch"]["mkl_cbwr"] == "BRANCH_OFF"
        assert lowered["torch"]["mkl_cbwr"] == "COMPATIBLE"
    assert "ATEN_CPU_CAPABILITY" not in plain["variables"]


@pytest.mark.torch
def test_the_instruction_set_of_onednn_is_the_effective_one(plain: Report) -> None:
    if plain["cpu"]["isa"] in ("unknown", "sse41") or plain["torch"]["onednn_isa"] is None:
        pytest.skip("needs oneDNN and a processor that can be lowered")
    lowered = json.loads(printed(ONEDNN_MAX_CPU_ISA="SSE41"))["torch"]
    assert lowered["onednn_isa"] == "Intel SSE4.1"
    assert lowered["onednn_kernel"] == "jit:sse41"
    assert plain["torch"]["onednn_isa"] != lowered["onednn_isa"]


@pytest.mark.torch
def test_verbose_libraries_do_not_spoil_the_document() -> None:
    report = json.loads(printed(ONEDNN_VERBOSE="1", MKL_VERBOSE="1"))
    assert report["variables"]["ONEDNN_VERBOSE"] == "1"
    assert report["torch"]["onednn_isa"] is not None or not report["torch"]["mkldnn"]["available"]


@pytest.mark.torch
def test_nothing_private_is_in_it(tmp_path: Path) -> None:
    secrets = {
        "REPROKIT_TEST_TOKEN": "s3cr3t-one",
        "MKL_SECRET": "s3cr3t-two",
        "HOME": "/home/carol-the-user",
    }
    output = printed(**secrets, TRITON_PTXAS_PATH=f"{tmp_path}/ptxas").decode()
    for private in (
        socket.gethostname(),
        str(Path.cwd()),
        str(Path.home()),
        str(tmp_path),
        sys.prefix,
        str(ROOT),
    ):
        assert private not in output
    for private in ("s3cr3t", "REPROKIT_TEST_TOKEN", "MKL_SECRET", "carol"):
        assert private not in output
    words = set(output.replace('"', " ").replace("/", " ").replace(":", " ").split())
    assert getpass.getuser() not in words


@pytest.mark.torch
def test_full_detail_shows_paths_and_packages_but_no_secret(plain: Report) -> None:
    full = json.loads(printed("--detail", "full", MKL_SECRET="s3cr3t"))
    decode(full, EnvironmentReport, "environment")
    assert len(full["packages"]) == full["python"]["packages_count"] > len(plain["packages"])
    assert full["python"]["packages_sha256"] == plain["python"]["packages_sha256"]
    assert full["libraries"]["libtorch_cpu.so"]["path"].startswith("/")
    assert "s3cr3t" not in json.dumps(full)


@pytest.mark.torch
def test_a_change_of_a_hidden_package_changes_the_digest(plain: Report, tmp_path: Path) -> None:
    (tmp_path / "our_project-1.0.dist-info").mkdir()
    changed = json.loads(printed(PYTHONPATH=os.pathsep.join([str(ROOT), str(tmp_path)])))
    assert changed["packages"] == plain["packages"]
    assert changed["python"]["packages_sha256"] != plain["python"]["packages_sha256"]
    assert changed["digest"] != plain["digest"]


@pytest.mark.torch
def test_dynamo_and_the_optimisers_stay_out() -> None:
    names = ("torch._dynamo", "torch._inductor")
    code = (
        f"import sys, reprokit.environment as e; e.collect(); print([m for m in {names} if m in sys.modules])"
    )
    assert printed(code=code) == b"[]\n"


def test_without_torch_numpy_and_pynvml_the_rest_is_reported() -> None:
    raw = parse_json(printed(code=BLOCKED), "environment")
    report = decode(raw, EnvironmentReport, "environment")
    assert (report.torch, report.numpy, report.gpus) == (None, None, [])
    assert absent(raw, "torch") == "torch is not installed"
    assert absent(raw, "numpy") == "NumPy is not installed"
    assert absent(raw, "gpus") == "the Python module pynvml (nvidia-ml-py) is not installed"
    assert report.python.version is not None
    assert "libc.so.6" in report.libraries or sys.platform != "linux"


@pytest.fixture
def settings() -> Callable[[str], Report]:
    """The section `torch` after some code has run."""
    pytest.importorskip("torch")

    def section(code: str) -> Report:
        prelude = "import json, torch\nfrom reprokit.environment import torch_settings\n"
        finish = "\nfrom reprokit.environment.absence import Absences\na = Absences()\n"
        show = "print(json.dumps({**torch_settings.collect(a), 'absent': a.entries()}))"
        return json.loads(printed(code=prelude + code + finish + show))  # type: ignore[no-any-return]

    return section


@pytest.mark.torch
def test_effective_settings_are_read_from_the_process(settings: Callable[[str], Report]) -> None:
    section = settings(
        "torch.use_deterministic_algorithms(True, warn_only=True)\n"
        "torch.utils.deterministic.fill_uninitialized_memory = False\n"
        "torch.backends.cudnn.deterministic = True\n"
        "torch.backends.cuda.enable_flash_sdp(False)\n"
        "torch.set_default_dtype(torch.float64)\n"
        "torch.set_flush_denormal(True)\n"
        "torch.set_num_threads(1)\n"
    )
    assert section["deterministic_algorithms"] is section["deterministic_warn_only"] is True
    assert section["fill_uninitialized_memory"] is False
    assert section["cudnn"]["deterministic"] is True
    assert section["attention"]["flash"] is False
    assert section["default_dtype"] == "float64"
    assert section["num_threads"] == 1
    if section["build"]["mkl"] is not None:  # x86: every processor there can flush
        assert section["flush_denormal"] is True


@pytest.mark.torch
def test_the_defaults_are_read_as_torch_documents_them(settings: Callable[[str], Report]) -> None:
    section = settings("")
    assert section["fill_uninitialized_memory"] is True
    assert section["flush_denormal"] is section["deterministic_algorithms"] is False
    assert section["float32_matmul_precision"] == "highest"


@pytest.mark.torch
def test_mixed_precision_settings_leave_a_reason(settings: Callable[[str], Report]) -> None:
    section = settings("torch.backends.cuda.matmul.fp32_precision = 'tf32'\n")
    assert section["fp32_precision"]["cuda_matmul"] == "tf32"
    if section["matmul"]["allow_tf32"] is None:
        assert absent(section, "torch.matmul.allow_tf32") == (
            "the old and the new TF32 settings are mixed: fp32_precision holds"
        )


@pytest.mark.torch
@pytest.mark.parametrize("closed", [False, True])
def test_asking_onednn_leaves_standard_output_alone(closed: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = tmp_path / "result"
    code = f"""
import os, sys
os.write(1, b"before ") if not {closed} else os.close(1)
from reprokit.environment import onednn
try:
    isa = onednn.effective().isa
except onednn.Unavailable as error:
    isa = str(error)
try:
    os.fstat(1)
    state = "open"
    os.write(1, b"after")
except OSError:
    state = "closed"
descriptor = os.open({str(result)!r}, os.O_WRONLY | os.O_CREAT)
os.write(descriptor, f"{{isa}}|{{state}}".encode())
"""
    output = printed(code=code)
    assert output == (b"" if closed else b"before after")
    isa, _, state = result.read_text().partition("|")
    assert isa
    assert state == ("closed" if closed else "open")


@pytest.mark.torch
def test_what_others_print_meanwhile_is_passed_on() -> None:
    pytest.importorskip("torch")
    code = (
        "import os\nfrom reprokit.environment import onednn\nonednn.captured(lambda: os.write(1, b'mine\\n'))"
    )
    assert printed(code=code) == b"mine\n"
