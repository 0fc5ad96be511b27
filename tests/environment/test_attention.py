"""Which attention kernel torch picks: told where it can be, with the reason where it cannot, never by waking CUDA."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reprokit.environment import torch_settings
from reprokit.environment.absence import Absences, Unavailable
from reprokit.model.environment import Attention

KERNELS = {"ERROR": -1, "MATH": 0, "FLASH_ATTENTION": 1, "CUDNN_ATTENTION": 3}


class FakeTorch:
    """As much of torch as is asked: `number` is what it answers."""

    float32 = "float32"

    def __init__(self, number: int, initialised: bool = False) -> None:
        self.cuda = SimpleNamespace(is_initialized=lambda: initialised)
        self._C = SimpleNamespace(_SDPBackend=SimpleNamespace(__members__=KERNELS))
        self.devices: list[str] = []
        self.number = number

    def zeros(self, *shape: int, device: str, dtype: str) -> str:
        self.devices.append(device)
        return device

    def _fused_sdp_choice(self, *heads: str, **options: Any) -> int:
        return self.number


@pytest.mark.parametrize(("initialised", "device"), [(False, "cpu"), (True, "cuda")])
def test_it_is_asked_where_this_process_computes(initialised: bool, device: str) -> None:
    torch = FakeTorch(3, initialised)
    assert torch_settings.chosen_attention(torch) == "cudnn_attention"
    assert torch.devices == [device]


def test_a_number_without_a_name_is_no_guess() -> None:
    with pytest.raises(Unavailable, match="torch answered with the unknown kernel 9"):
        torch_settings.chosen_attention(FakeTorch(9))


def test_a_torch_that_cannot_be_asked_leaves_the_key_out_and_says_why() -> None:
    absences = Absences()
    assert torch_settings._chosen(absences, SimpleNamespace()) == {}
    assert absences.entries() == [
        {
            "field": "torch.attention.chosen",
            "state": "unavailable",
            "reason": "this torch has no _fused_sdp_choice",
        }
    ]


def test_an_older_document_without_the_key_is_valid() -> None:
    import msgspec

    old = {
        "flash": True,
        "memory_efficient": True,
        "math": True,
        "cudnn": True,
        "math_reduced_precision": False,
    }
    assert msgspec.to_builtins(msgspec.convert(old, Attention)) == old
    new = old | {"chosen": "math"}
    assert msgspec.to_builtins(msgspec.convert(new, Attention)) == new
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(old | {"picked": "math"}, Attention)


@pytest.mark.torch
def test_what_is_switched_off_is_not_chosen() -> None:
    torch = pytest.importorskip("torch")
    before = torch.backends.cuda.flash_sdp_enabled()
    assert torch_settings.chosen_attention(torch) == "flash_attention"
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert torch_settings.chosen_attention(torch) == "math"
    finally:
        torch.backends.cuda.enable_flash_sdp(before)
    assert not torch.cuda.is_initialized()
