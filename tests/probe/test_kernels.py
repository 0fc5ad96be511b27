"""The stages `kernel.*`: what is documented to race, what only a GPU runs, and the names of its kernels."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from reprokit.model.trace import Stage as Document  # noqa: E402
from reprokit.probe import __main__ as program  # noqa: E402
from reprokit.probe import kernel_names, recorder  # noqa: E402
from reprokit.probe.lfq import gpu_kernels, indexing, kernels, products, sensitive, training  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
CUDA = torch.autograd.DeviceType.CUDA


@pytest.fixture(scope="module")
def records():
    record = recorder.Recorder()
    record.run(kernels.kernel_stages(CPU, True))
    return {stage["name"]: stage for stage in record.trace()}


def test_what_a_cpu_lacks_says_so_and_the_rest_runs(records):
    missing = {name for name, record in records.items() if record["state"] == "unavailable"}
    assert {records[name]["reason"] for name in missing} == {"needs a GPU"}
    assert missing == {stage.name for stage in gpu_kernels.gpu_stages(CPU)}
    assert {record["state"] for name, record in records.items() if name not in missing} <= {"ok", "blind"}
    assert all(record["bound"]["holds"] for name, record in records.items() if name not in missing)


def test_every_m_meets_every_k(records):
    found = {
        tuple(map(int, m.groups()))
        for name in records
        if (m := re.match(r"kernel\.gemm\.(\d+)x(\d+)x", name))
    }
    assert {(m, k) for m in (1, 8, 16, 32, 255, 256) for k in (1000, 1001, 1024)} <= found


def test_quick_is_a_part_of_full(records):
    quick = [stage.name for stage in kernels.kernel_stages(CPU, False)]
    assert len(quick) < len(records) / 2
    assert set(quick) < set(records)


def test_an_operator_is_said_to_race_where_torch_documents_it(monkeypatch):
    """Each of them stands in the documentation, for the kind of device that it is said of."""
    named = set()

    def noted(operator, kind, device):
        named.add((operator, kind))
        return sensitive.racing(operator, kind, device)

    for module in (products, indexing, kernels, gpu_kernels, training):
        monkeypatch.setattr(module, "racing", noted)
    stages = [
        *kernels.kernel_stages(CPU, True),
        *gpu_kernels._tf32(CPU),
        *training.training_stages(CPU, 0),
    ]
    assert named == {
        ("torch.nn.Conv1d", "cuda"),
        ("torch.nn.Conv2d", "cuda"),
        ("torch.Tensor.scatter_add_", "cuda"),
        ("torch.index_add", "cuda"),
        ("torch.cumsum", "cuda"),
        ("torch.Tensor.index_put_ with accumulate=True", "cpu"),
        ("torch.Tensor.__getitem__, differentiated", "cpu"),
    }
    told = " ".join(torch.use_deterministic_algorithms.__doc__.split())
    for operator, kind in named:
        word = re.split(r"_? with |, |_$", operator)[0]
        assert re.search(rf"`{re.escape(word)}_?`[^*]*{kind.upper()} tensor", told), operator
    assert {stage.name for stage in stages if stage.races} == {
        "kernel.index_put.fp32",
        *(
            f"training.gradients.{way}.{table}"
            for way in ("1x8", "4x2")
            for table in ("embedding", "position")
        ),
    }


def test_few_enough_rows_are_put_for_one_thread():
    """torch documents index_put with accumulate for a CPU, whose threads race from 32,768 elements on."""
    told = torch.use_deterministic_algorithms.__doc__
    assert re.search(r"index_put` with ``accumulate=True`` when called on a CPU", told)
    source, _ = indexing._rows(CPU, 499)
    assert source.numel() < 32768


def held(stage):
    """What a stage's bound says of its result, and whether its control moves it."""
    result = stage.compute()
    return stage.bound(result), not torch.equal(result, stage.control.compute())


def test_what_needs_a_gpu_is_right_where_a_cpu_can_rehearse_it(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "SHAPES", ((64, 512, 64), (128, 256, 128)))
    eager = next(iter(gpu_kernels._captured(CPU)))
    for stage in (*gpu_kernels._large(CPU), *gpu_kernels._tf32(CPU), eager):
        ratio, moved = held(stage)
        assert 0 <= ratio <= 0.5, stage.name
        assert moved or stage.name.endswith(".bf16"), stage.name
    gpu_kernels._operands.cache_clear()


def test_fp8_is_right_where_a_cpu_can_rehearse_it(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "FP8_SHAPE", (32, 64, 32))
    stage = gpu_kernels._fp8(CPU)
    try:
        result = stage.compute()
    except RuntimeError as error:
        pytest.skip(f"this CPU has no FP8 product: {error}")
    assert stage.bound(result) <= 0.5
    assert stage.bound(2 * result) > 1
    assert stage.control.compute().shape == (32, 32)
    a, b = (torch.arange(6.0).reshape(2, 3).to(torch.float8_e4m3fn) for _ in range(2))
    ours, theirs = gpu_kernels._reversed_fp8(a, b.T)
    assert ours.float().tolist() == [[2, 1, 0], [5, 4, 3]]
    assert theirs.float().tolist() == [[2, 5], [1, 4], [0, 3]]


def test_a_function_that_cannot_be_compiled_here_says_so(monkeypatch):
    class NoTriton(Exception):
        __module__ = "torch._inductor.exc"

    def broken(error):
        def compiled():
            raise error

        return compiled

    monkeypatch.setattr(gpu_kernels, "_compiled_softmax", broken(NoTriton()))
    with pytest.raises(recorder.Unavailable, match="torch.compile cannot compile here: NoTriton"):
        gpu_kernels._by_inductor(torch.ones(2, 2))
    monkeypatch.setattr(gpu_kernels, "_compiled_softmax", broken(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        gpu_kernels._by_inductor(torch.ones(2, 2))
    monkeypatch.setattr(gpu_kernels, "_compiled_softmax", lambda: lambda x: torch.softmax(x, -1))
    ratio, moved = held(gpu_kernels._compiled(CPU))
    assert ratio <= 0.5
    assert moved


def event(name, device=CUDA, **more):
    return SimpleNamespace(name=name, device_type=device, **more)


def test_names_are_those_of_kernels_sorted_and_each_once():
    events = [
        event("sm90_xmma_gemm_f32f32_tn_n"),
        event("cudaLaunchKernel", torch.autograd.DeviceType.CPU),
        event("Memcpy DtoD (Device -> Device)"),
        event("Memset (Device)"),
        event("elementwise_kernel<4>"),
        event("elementwise_kernel<4>"),
        event("ProfilerStep*", is_user_annotation=True),
    ]
    assert kernel_names.extracted(events) == ["elementwise_kernel<4>", "sm90_xmma_gemm_f32f32_tn_n"]
    assert kernel_names.extracted([]) == []


def test_a_long_name_is_cut_and_stays_its_own():
    names = kernel_names.extracted([event("k" * 400 + "a"), event("k" * 400 + "b")])
    assert len(names) == 2
    assert {len(name) for name in names} == {300}


def fake_stages():
    def lacking():
        raise recorder.Unavailable("no FP8")

    return [
        recorder.Stage("kernel.a", "gemm", lambda: torch.ones(1)),
        recorder.Stage("kernel.b", "gemm", lacking),
        recorder.Stage("kernel.numpy_c", "gemm", lambda: torch.ones(1)),
        recorder.Stage("logits", "gemm", lambda: torch.ones(1)),
    ]


def test_only_kernels_that_run_on_the_gpu_are_named(monkeypatch):
    def profiled(stage):
        stage.compute()
        return [] if "numpy" in stage.name else [event(f"{stage.name}_kernel")]

    monkeypatch.setattr(kernel_names, "_profiled", profiled)
    assert kernel_names.names(fake_stages()) == {"kernel.a": ["kernel.a_kernel"]}


def test_names_become_a_part_of_their_stages():
    import msgspec

    record = recorder.Recorder()
    record.run(fake_stages())
    record.add_kernels({"kernel.a": ["one", "two"], "kernel.numpy_c": [], "kernel.gone": ["three"]})
    found = {stage["name"]: stage for stage in record.trace()}
    assert found["kernel.a"]["kernels"] == ["one", "two"]
    assert not any("kernels" in found[name] for name in ("kernel.b", "kernel.numpy_c", "logits"))
    for stage in found.values():
        assert msgspec.to_builtins(msgspec.convert(stage, Document)) == stage


def test_a_cpu_names_nothing_and_records_no_key(measure):
    done = subprocess.run(
        [sys.executable, "-m", "reprokit.probe", "--kernels"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {}
    document = json.loads(measure("quick").read_text())
    assert not any("kernels" in stage for stage in document["stages"])


@pytest.mark.parametrize("code", [0, 7])
def test_the_recording_process_takes_what_the_profiled_one_prints(monkeypatch, code):
    asked = []

    def run(command, **options):
        asked.extend(command)
        return SimpleNamespace(returncode=code, stdout=b'{"kernel.a":["one"]}\n')

    monkeypatch.setattr(program.subprocess, "run", run)
    options = SimpleNamespace(profile="full", device="cuda", mode="strict", seed=3)
    if code:
        with pytest.raises(program.CannotRun, match="names of kernels ended with exit code 7"):
            program._kernel_names(options)
    else:
        assert program._kernel_names(options) == {"kernel.a": ["one"]}
    assert asked[-9:] == [
        "--profile",
        "full",
        "--device",
        "cuda",
        "--mode",
        "strict",
        "--seed",
        "3",
        "--kernels",
    ]
