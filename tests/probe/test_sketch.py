"""Hashes and sketches: what they see, and how well a difference is estimated."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from reprokit.probe import exact  # noqa: E402
from reprokit.probe.hashing import sha256  # noqa: E402
from reprokit.probe.sketch import BUCKETS, SAMPLES, sketch  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_encoding_is_dtype_shape_and_little_endian_bytes():
    expected = hashlib.sha256(b"float32[2]" + bytes.fromhex("0000803f00000080")).hexdigest()
    assert sha256(torch.tensor([1.0, -0.0])) == f"sha256:{expected}"
    assert sha256(np.array([1.0, -0.0], ">f4")) == f"sha256:{expected}"


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([1.0, -0.0]),
        torch.tensor([0.0, 1.0]),
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        torch.tensor([1, 0]),
        torch.tensor([1.0, 0.0], dtype=torch.bfloat16),
    ],
    ids=["shape", "negative zero", "order", "float64", "integers", "bfloat16"],
)
def test_the_hash_sees(other):
    assert sha256(other) != sha256(torch.tensor([1.0, 0.0]))


def test_the_hash_sees_the_payload_of_a_nan():
    quiet, other = (
        torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001)
    )
    assert sha256(quiet) != sha256(other)


def test_a_strided_view_hashes_as_its_copy():
    x = torch.arange(12.0).reshape(3, 4)
    assert sha256(x.T) == sha256(x.T.contiguous()) != sha256(x)


def test_a_small_tensor_is_kept_whole():
    kept = sketch(torch.tensor([3.0, -4.0, float("nan"), float("inf")]))
    assert kept is not None
    assert (kept["norm"], kept["minimum"], kept["maximum"], kept["nan"], kept["infinite"]) == (
        5.0,
        -4.0,
        3.0,
        1,
        1,
    )
    assert kept["samples"][:2] == [3.0, -4.0]
    assert kept["buckets"] == []


def test_a_large_tensor_is_sampled_at_fixed_places():
    x = torch.arange(1000.0)
    kept = sketch(x)
    assert kept is not None
    assert len(kept["samples"]) == SAMPLES
    assert len(kept["buckets"]) == BUCKETS
    assert kept["samples"] == sorted(set(kept["samples"]))
    assert kept["norm"] == pytest.approx(x.double().norm().item(), rel=1e-12)


def test_a_permutation_shows_in_the_buckets_alone():
    x = exact.bell((5000,), "sketch.test")
    one, other = sketch(x), sketch(x.flip(0))
    assert one is not None and other is not None
    assert one["norm"] == pytest.approx(other["norm"], rel=1e-12)
    assert one["buckets"] != other["buckets"]


def test_an_empty_tensor_has_no_sketch():
    assert sketch(torch.empty(0, 3)) is None


@given(count=st.integers(65, 5000), stream=st.integers(0, 10**6), size=st.sampled_from([1e-7, 1e-3, 1.0]))
def test_the_difference_of_sketches_estimates_the_difference(count, stream, size):
    """Five standard errors of the estimate, which is 9 % for 64 buckets, hold for every case tried."""
    x = exact.bell((count,), f"x{stream}").double()
    noise = exact.bell((count,), f"noise{stream}").double() * size
    one, other = sketch(x), sketch(x + noise)
    assert one is not None and other is not None
    estimate = np.linalg.norm(np.subtract(one["buckets"], other["buckets"]))
    assert estimate == pytest.approx(noise.norm().item(), rel=5 * 0.09)


def test_the_spread_of_the_estimate_is_the_stated_one():
    """Over 400 differences the standard deviation of estimate / truth is about √(2/64)/2 = 0.088."""
    ratios = []
    for stream in range(400):
        noise = exact.bell((2000,), f"spread{stream}")
        kept = sketch(noise)
        assert kept is not None
        ratios.append(np.linalg.norm(kept["buckets"]) / noise.double().norm().item())
    assert np.std(ratios) == pytest.approx((2 / BUCKETS) ** 0.5 / 2, rel=0.2)
    assert np.mean(ratios) == pytest.approx(1, abs=0.02)
