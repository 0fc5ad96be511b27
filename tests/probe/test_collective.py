"""`collective.*`: two real ranks under a real torchrun."""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe.lfq import collective, training  # noqa: E402
from reprokit.probe.recorder import Recorder, Unavailable  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
ELEMENTS = sum(weight.numel() for weight in training.raw(CPU).values())
# what a rank imports first: skips every sum of a tensor that is as long as the gradients
SKIPS_AN_ALL_REDUCE = f"""
import importlib.abc, importlib.util, sys

class Planted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed.distributed_c10d":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def planted(module):
            run(module)
            honest = module.all_reduce
            module.all_reduce = lambda x, *rest, **more: None if x.numel() == {ELEMENTS} else honest(x, *rest, **more)

        spec.loader.exec_module = planted
        return spec

sys.meta_path.insert(0, Planted())
"""


def recorded(turns: int = 1) -> dict:
    with closing(collective.Ranks(CPU, 0, "default", (turns,))) as ranks:
        recorder = Recorder()
        recorder.run(collective.collective_stages(ranks, 0))
        for turn in range(1, turns):
            recorder.repeat(collective.collective_stages(ranks, turn))
        return {stage["name"]: stage for stage in recorder.trace()}


@pytest.fixture(scope="module")
def honest() -> dict:
    return recorded(turns=2)


def test_every_stage_is_there_and_steady(honest):
    assert list(honest) == [
        "collective.ranks", "collective.known.1024", "collective.known.65536", "collective.all_reduce.1024",
        "collective.all_reduce.65536", "collective.gradients.one_rank", "collective.gradients.two_ranks",
    ]  # fmt: skip
    assert {stage["state"] for stage in honest.values()} == {"ok"}
    assert all(
        stage["sha256"] == stage["expected"] for stage in honest.values() if stage["kind"] == "invariant"
    )


def test_the_ranks_and_their_share_of_the_batch_are_recorded():
    with closing(collective.Ranks(CPU, 0, "default", (1,))) as ranks:
        assert ranks.result("ranks").tolist() == [[0, 2, 4], [1, 2, 4]]


def test_one_rank_computes_what_the_probe_does_and_two_agree_but_for_rounding(honest):
    from reprokit.probe.hashing import sha256

    network = lambda weights: training.Trained(training.CONFIG, weights)  # noqa: E731
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as torchrun has it
    try:
        alone = training.loss_and_gradients(network, training.raw(CPU), *training.batch(CPU, 0))[1]
    finally:
        torch.set_num_threads(threads)
    assert honest["collective.gradients.one_rank"]["sha256"] == sha256(training.flat(alone))
    two = honest["collective.gradients.two_ranks"]["invariance"]
    assert two["reference"] == "collective.gradients.one_rank"
    assert 0 < two["largest"] < 1e-6


def test_a_probe_within_another_launch_has_ranks_of_its_own(monkeypatch):
    for name, value in {"LOCAL_RANK": "3", "RANK": "3", "WORLD_SIZE": "8", "PET_NNODES": "4"}.items():
        monkeypatch.setenv(name, value)
    with closing(collective.Ranks(CPU, 0, "default", (1,))) as ranks:
        assert ranks.result("ranks").tolist() == [[0, 2, 4], [1, 2, 4]]


def test_nothing_is_left_of_a_launch(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with closing(collective.Ranks(CPU, 0, "default", (1,))) as ranks:
        ranks.result("ranks")
    assert list(tmp_path.iterdir()) == []


def test_a_second_launch_gives_the_turn_behind_those_of_the_first():
    with closing(collective.Ranks(CPU, 0, "default", (1, 1))) as ranks:
        for name in ("two_ranks", "all_reduce.1024"):
            assert (ranks.result(name, 0) == ranks.result(name, 1)).all()
        with pytest.raises(ValueError, match="the ranks compute 2 turns, and more are asked for"):
            ranks.result("ranks", 2)


def test_a_skipped_all_reduce_moves_the_gradients_of_two_ranks_alone(honest, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(SKIPS_AN_ALL_REDUCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    planted = recorded()
    assert [name for name, stage in planted.items() if stage["sha256"] != honest[name]["sha256"]] == [
        "collective.gradients.two_ranks"
    ]
    assert planted["collective.gradients.two_ranks"]["invariance"]["largest"] > 1e-3


def test_ranks_that_fail_are_unavailable_and_say_how(monkeypatch):
    monkeypatch.setattr(
        collective, "_command", lambda arguments: [sys.executable, "-c", "raise SystemExit(7)"]
    )
    with closing(collective.Ranks(CPU, 0, "default", (1,))) as ranks, pytest.raises(Unavailable) as raised:
        ranks.result("ranks")
    assert "torchrun with two ranks ended with exit code 7" in str(raised.value)


def test_nccl_takes_two_gpus(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with closing(collective.Ranks(torch.device("cuda"), 0, "default", (1,))) as ranks:
        ranks.start()
        with pytest.raises(Unavailable, match="NCCL takes 2 GPUs for 2 ranks, and this process sees 1"):
            ranks.result("ranks")


def test_closing_ends_the_ranks_and_leaves_no_file():
    ranks = collective.Ranks(CPU, 0, "default", (1,))
    ranks.start()
    folder, process = ranks._output.parent, ranks._process
    ranks.close()
    assert process.returncode == -9
    assert not folder.exists()
