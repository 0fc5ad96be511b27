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
TF32 = 2.0**-11  # unit roundoff of the 10 bits that TF32 keeps of a float32 input


def roundoff(dtype: torch.dtype) -> float:
    """Unit roundoff of a dtype: 2^-24 for float32, 2^-8 for bfloat16."""
    return float(torch.finfo(dtype).eps) / 2


def ratio(result: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> float:
    """Largest |result − reference| / bound over the elements; the rounding to the result's dtype is allowed for."""
    result, reference, bound = result.double().cpu(), reference.double().cpu(), bound.double().cpu()
    allowed = bound + torch.finfo(torch.float32).tiny
    quotient = (result - reference).abs() / allowed
    return math.inf if quotient.isnan().any() else float(quotient.max())


def product(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, inputs: float = 0.0) -> float:
    """Matrix product (m, k) by (k, n), accumulated in float32 or better; `inputs`: roundoff of its inputs."""
    a, b = a.double().cpu(), b.double().cpu()
    reference = a @ b
    bound = (a.shape[-1] * roundoff(torch.float32) + 2 * inputs) * (a.abs() @ b.abs())
    return ratio(result, reference, SLACK * (bound + roundoff(result.dtype) * reference.abs()))


def convolution(result: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, inputs: float = 0.0) -> float:
    """2-D convolution (n, c, h, w) with (o, c, kh, kw) without padding; `inputs`: roundoff of its inputs."""
    x, weight = x.double().cpu(), weight.double().cpu()
    reference = torch.nn.functional.conv2d(x, weight)
    # Winograd and FFT kernels are less accurate than the inner product by a modest factor
    relative = 4 * weight[0].numel() * roundoff(torch.float32) + 2 * inputs
    bound = relative * torch.nn.functional.conv2d(x.abs(), weight.abs())
    return ratio(result, reference, SLACK * (bound + roundoff(result.dtype) * reference.abs()))


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
    u, x = roundoff(torch.float32), x.double().cpu()
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
    terms = x.shape[-1] * roundoff(torch.float32)
    bound = terms * (x.abs().mean(-1, keepdim=True) * scale + reference.abs())
    return ratio(result, reference, SLACK * (bound + roundoff(result.dtype) * reference.abs()))


def attention(
    result: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: float = 0.0
) -> float:
    """Causal attention (b, h, t, d): errors of the scores pass through the exponential into the weights.

    `inputs`: roundoff of the inputs of its two products.
    """
    u, u_out = roundoff(torch.float32), roundoff(result.dtype)
    q, k, v = (part.double().cpu() for part in (q, k, v))
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
    return ratio(
        result,
        reference,
        SLACK * roundoff(result.dtype) * (scale.double().cpu().abs() + reference.cpu().abs()),
    )


def scattered(result: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> float:
    """Rows (n, d) of `source` added up by `index` (n,)."""
    source, index = source.double().cpu(), index.cpu()
    zeros = torch.zeros(result.shape, dtype=torch.float64)
    reference, magnitude = zeros.index_add(0, index, source), zeros.index_add(0, index, source.abs())
    terms = torch.bincount(index, minlength=result.shape[0]).double().unsqueeze(-1)
    return ratio(result, reference, SLACK * terms * roundoff(result.dtype) * magnitude)
