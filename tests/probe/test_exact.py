"""Exact inputs against the same arithmetic in Python's integers."""

import hashlib

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe import exact  # noqa: E402

pytestmark = pytest.mark.torch
WORD = 2**64


def splitmix(stream: str, index: int) -> int:
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little")
    z = (key + index) * 0x9E3779B97F4A7C15 % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def test_integers_are_splitmix64_of_the_counter():
    assert exact.integers((2, 3), "s").flatten().tolist() == [splitmix("s", i) for i in range(6)]


def test_uniform_uses_24_bits_and_is_exact():
    values = exact.uniform((4096,), "s")
    assert values.tolist() == [((splitmix("s", i) >> 40) - 2**23) / 2**23 for i in range(4096)]
    assert values.dtype == torch.float32
    assert any(int(value * 2**23) % 2 for value in values.tolist()), "the last bit is never set"


def test_bell_is_the_sum_of_four_uniforms():
    low = 2**22 - 1
    words = [splitmix("s", i) for i in range(8)]
    sums = [sum((w & low) + (w >> 32 & low) for w in words[2 * i : 2 * i + 2]) for i in range(4)]
    assert exact.bell((4,), "s").tolist() == [(total - 2**23) / 2**21 for total in sums]
    many = exact.bell((1 << 16,), "s").double()
    assert many.std().item() == pytest.approx(2 / 3**0.5, rel=0.01)
    assert many.mean().item() == pytest.approx(0, abs=0.02)


def test_streams_differ_by_name_and_not_by_shape():
    assert exact.uniform((6,), "a").tolist() != exact.uniform((6,), "b").tolist()
    assert exact.uniform((2, 3), "a").flatten().tolist() == exact.uniform((6,), "a").tolist()


def test_permutation_holds_each_index_once():
    order = exact.permutation(1000, "p").tolist()
    assert sorted(order) == list(range(1000))
    assert order != sorted(order)
    assert order == sorted(range(1000), key=lambda i: splitmix("p", i))
