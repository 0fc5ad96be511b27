"""A-priori error bounds of floating-point kernels, each against a float64 reference.

The bounds follow Higham, Accuracy and Stability of Numerical Algorithms (2nd ed., 2002): an inner product of K
terms errs by at most K·u·|A||B| to first order (section 3.5), in whatever order it is summed. `u` is the unit
roundoff, half the spacing at 1. Each function returns the largest error in units of its bound: above 1 the
result is wrong on any machine, so no baseline is needed to say so. NaN where the reference has none counts as
infinite.
"""

from __future__ import annotations

import math

import torch

SLACK = 4.0  # of each bound: second-order terms and functions that are not correctly rounded
FLOAT32 = 2.0**-24  # unit roundoff of float32, in which sums are accumulated
TF32 = 2.0**-11  # unit roundoff of the 10 bits that TF32 keeps of a float32 input
# Hopper's FP8 units keep about 14 bits of a sum and cut off the rest: DeepSeek-V3 technical report (2024), 3.3.2
FP8_SUM = 2.0**-13


def roundoff(dtype: torch.dtype) -> float:
    """Unit roundoff of a dtype: 2^-24 for float32, 2^-8 for bfloat16."""
    return float(torch.finfo(dtype).eps) / 2


def ratio(result: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> float:
    """Largest |result − reference| / bound over the elements, computed where the reference is."""
    error = (result.to(reference.device).double() - reference).abs()
    quotient = error / (bound + torch.finfo(torch.float32).tiny)
    return math.inf if quotient.isnan().any() else float(quotient.max())


def product(
    result: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: float = 0.0,
    *,
    bias: torch.Tensor | None = None,
    partials: float = 0.0,
    accumulator: float = FLOAT32,
    on: str | torch.device = "cpu",
) -> float:
    """Matrix product (…, m, k) by (…, k, n), plus `bias`, one more term of the sum.

    Roundoffs: `inputs` of what is made of the inputs, `accumulator` of each addition, `partials` of sums over a part
    of K that are stored between. `on` is where the reference is computed.
    """
    a, b = a.to(on).double(), b.to(on).double()
    reference, magnitude, terms = a @ b, a.abs() @ b.abs(), a.shape[-1]
    if bias is not None:
        extra = bias.to(on).double()
        reference, magnitude, terms = reference + extra, magnitude + extra.abs(), terms + 1
    bound = (terms * accumulator + 2 * inputs + partials) * magnitude
    return ratio(result, reference, SLACK * (bound + roundoff(result.dtype) * reference.abs()))


def convolution(
    result: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    inputs: float = 0.0,
    bias: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
) -> float:
    """Convolution (n, c, [h,] w) with (o, c, [kh,] kw), one inner product of c·kh·kw terms for each result."""
    x, weight = x.double().cpu(), weight.double().cpu()
    offset = None if bias is None else bias.double().cpu()
    convolve = torch.nn.functional.conv1d if x.dim() == 3 else torch.nn.functional.conv2d
    reference = convolve(x, weight, offset, stride, padding)
    magnitude = convolve(x.abs(), weight.abs(), None if offset is None else offset.abs(), stride, padding)
    # Winograd and FFT kernels are less accurate than the inner product by a modest factor
    relative = 4 * (weight[0].numel() + (bias is not None)) * FLOAT32 + 2 * inputs
    return ratio(result, reference, SLACK * (relative * magnitude + roundoff(result.dtype) * reference.abs()))


def weight_gradient(
    result: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, inputs: float = 0.0
) -> float:
    """Gradient (o, c, kh, kw) of a convolution by its weight: inner products over batch and places of the result."""
    x, gradient = x.double().cpu(), gradient.double().cpu()
    shape = tuple(result.shape)
    reference = torch.nn.grad.conv2d_weight(x, shape, gradient)
    magnitude = torch.nn.grad.conv2d_weight(x.abs(), shape, gradient.abs())
    relative = 4 * gradient[:, 0].numel() * FLOAT32 + 2 * inputs
    return ratio(result, reference, SLACK * (relative * magnitude + roundoff(result.dtype) * reference.abs()))


def total(result: torch.Tensor, x: torch.Tensor, dim: int) -> float:
    """Sum along `dim`."""
    x = x.double().cpu()
    bound = x.shape[dim] * roundoff(result.dtype) * x.abs().sum(dim)
    return ratio(result, x.sum(dim), SLACK * bound)


def running_total(result: torch.Tensor, x: torch.Tensor) -> float:
    """Cumulative sum (n,)."""
    x = x.double().cpu()
    terms = torch.arange(1, len(x) + 1, dtype=torch.float64)
    return ratio(result, x.cumsum(0), SLACK * terms * roundoff(result.dtype) * x.abs().cumsum(0))


def softmax(result: torch.Tensor, x: torch.Tensor) -> float:
    """Softmax along the last dimension (n): the rounding of x − max is carried by the exponential."""
    u, x = FLOAT32, x.double().cpu()
    reference = torch.softmax(x, -1)
    relative = x.shape[-1] * u + (x - x.amax(-1, keepdim=True)).abs() * u + roundoff(result.dtype)
    return ratio(result, reference, SLACK * relative * reference)


def log_softmax(result: torch.Tensor, x: torch.Tensor) -> float:
    """Logarithm of softmax along the last dimension (n)."""
    x = x.double().cpu()
    reference = torch.log_softmax(x, -1)
    scale = x.abs().amax(-1, keepdim=True) + reference.abs() + x.shape[-1]
    return ratio(result, reference, SLACK * roundoff(result.dtype) * scale)


def norm(result: torch.Tensor, x: torch.Tensor, centred: bool) -> float:
    """Layer norm (centred) or root-mean-square norm along the last dimension (n), without gain or bias."""
    x = x.double().cpu()
    eps = 1e-5 if centred else torch.finfo(torch.float32).eps
    mean = x.mean(-1, keepdim=True) if centred else torch.zeros_like(x[..., :1])
    scale = ((x - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    reference = (x - mean) * scale
    terms = x.shape[-1] * FLOAT32
    bound = terms * (x.abs().mean(-1, keepdim=True) * scale + reference.abs())
    return ratio(result, reference, SLACK * (bound + roundoff(result.dtype) * reference.abs()))


def attention(
    result: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: float = 0.0
) -> float:
    """Causal attention (b, h, t, d): errors of the scores pass through the exponential into the weights.

    Where `k` and `v` have fewer heads than `q`, each serves as many of its heads in a row (Ainslie and others 2023).
    `inputs`: roundoff of the inputs of its two products.
    """
    u, u_out = FLOAT32, roundoff(result.dtype)
    q, k, v = (part.double().cpu() for part in (q, k, v))
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
    length, d = q.shape[-2], q.shape[-1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    scores = (q @ k.transpose(-1, -2) / math.sqrt(d)).masked_fill(~mask, -math.inf)
    error = ((d + 2) * u + 2 * inputs) * (q.abs() @ k.abs().transpose(-1, -2) / math.sqrt(d))
    weights = torch.softmax(scores, -1)
    spread = (scores - scores.amax(-1, keepdim=True)).masked_fill(~mask, 0.0).abs() * u
    scores_error = (error + spread).masked_fill(~mask, 0.0).amax(-1, keepdim=True)
    relative = 2 * (scores_error + length * u + u_out + inputs)
    return ratio(result, weights @ v, SLACK * relative * (weights @ v.abs()))


def elementwise(result: torch.Tensor, reference: torch.Tensor, scale: torch.Tensor) -> float:
    """An elementwise function with an error of a few roundoffs of `scale`, the condition of its evaluation."""
    scale, reference = scale.double().cpu(), reference.double().cpu()
    return ratio(result, reference, SLACK * roundoff(result.dtype) * (scale.abs() + reference.abs()))


def scattered(result: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> float:
    """Rows (n, d) of `source` added up by `index` (n,)."""
    source, index = source.double().cpu(), index.cpu()
    zeros = torch.zeros(result.shape, dtype=torch.float64)
    reference, magnitude = zeros.index_add(0, index, source), zeros.index_add(0, index, source.abs())
    terms = torch.bincount(index, minlength=result.shape[0]).double().unsqueeze(-1)
    return ratio(result, reference, SLACK * terms * roundoff(result.dtype) * magnitude)
