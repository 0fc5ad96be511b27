"""What each stage is there to catch, by the beginning of its name: for `reprokit probe --list` and its page."""

from __future__ import annotations

PARTS = {
    "invariant": "Known answers, the same bytes on every correct machine: a miss is a broken kernel or machine.",
    "rng": "Streams of random numbers after seeding.",
    "data": "What goes into the computation, read, ordered, cut, padded and shared out.",
    "weights": "The tensors of the model, as a checkpoint holds them and as they are used.",
    "quantize": "Low-bit formats: scales, codes, calibration, codebooks, and what flips at a tie.",
    "layers": "The model step by step, in each precision, hashed before and after it quantises.",
    "kernel": "Each operator class alone on full mantissas, held to its float64 bound.",
    "batch": "Whether a sample's result depends on what is computed beside it: the invariance map.",
    "sampling": "Which token comes next, by each way of choosing it, under a fixed seed.",
    "training": "A few quantisation-aware steps, and what must not change them.",
    "collective": "The same global batch on one rank and on two, and all-reduce by itself.",
    "metrics": "A small task that is really trained, over five seeds.",
}

# The first entry that a name begins with counts.
STAGES: tuple[tuple[str, str], ...] = (
    ("rng.after.", "a part that drew more numbers from a global generator, or fewer, than it did before"),
    ("invariant.gemm.", "a matrix product that is wrong where every partial sum is exact"),
    ("invariant.int_mm", "a matrix product that is wrong where every partial sum is exact"),
    ("invariant.decode.", "a table of a low-bit format with a wrong entry"),
    ("invariant.encode.", "rounding that is not half to even, or does not saturate"),
    ("invariant.specials.", "zeros, −0, NaN, infinity, subnormals, just below a power of two, saturation"),
    ("invariant.nibbles", "4-bit codes packed in the other order"),
    ("invariant.", "an integer reduction, gather or sort that is wrong"),
    ("rng.python", "another stream of Python's generator"),
    ("rng.numpy", "another stream of NumPy's generators"),
    ("rng.torch", "another stream of torch's CPU generator, on both sides of where its kernels change"),
    ("rng.cuda", "another stream of the GPU's generator, on both sides of the size of its grid"),
    ("data.files", "files read in the order of the directory, or other files"),
    ("data.tokens", "another text or vocabulary"),
    ("data.shuffle", "another shuffled order"),
    ("data.augmentation", "augmentation without a seed of its own"),
    ("data.padding", "padding on the other side, another mask or other positions"),
    ("data.loader", "loader workers that are seeded otherwise, or another number of them"),
    ("data.distributed", "another split over the ranks"),
    ("data.", "another data set or label file"),
    ("weights.checkpoint.", "a checkpoint that comes back otherwise, or mixes weights and optimiser state"),
    ("weights.dtypes", "a tensor kept in another dtype"),
    ("weights.", "another tensor: other weights, EMA for raw ones, one that was rounded"),
    ("quantize.calibration.", "another scale or offset from the same calibration set"),
    ("quantize.int", "another rounding, zero point or packing of group-wise integers"),
    ("quantize.codebook", "another entry of the codebook where two are as near"),
    ("quantize.ties.", "codes that flip when a sum is taken in another order"),
    ("quantize.", "another scale rule, or a step of the quantiser that is not exact"),
    ("logits", "anything that reaches the logits, in every precision"),
    ("embedding.", "another lookup"),
    ("layer", "a kernel that gives other numbers within the model"),
    ("final_norm", "a kernel that gives other numbers within the model"),
    ("kernel.gemm", "matrix products by another kernel, over shapes, transposes and precisions"),
    ("kernel.row_", "one row of a product, alone and in a batch"),
    ("kernel.attention.", "attention by each backend, and by the one that torch picks"),
    (
        "kernel.grouped_attention",
        "attention with fewer keys than queries, at a length that 128 does not divide",
    ),
    ("kernel.numpy_", "NumPy's own kernels and BLAS"),
    ("kernel.captured", "a captured graph that does not replay what ran eagerly"),
    ("kernel.compiled", "a compiled function"),
    ("kernel.", "the operator by another kernel"),
    ("batch.", "a result that depends on position, size of the batch, padding, cache or a split prefill"),
    ("sampling.ties.", "a choice between equal logits that is not the first"),
    ("sampling.rounds.", "rounds under one seed that give different texts"),
    ("sampling.", "another text, and how near the second best token came at each step"),
    ("training.gradients.", "gradients, accumulated over one batch of eight and over four of two"),
    ("training.slopes", "gradients that central differences in float64 contradict"),
    ("training.resumed", "a training that does not go on from a checkpoint as if nothing had been"),
    ("training.scaled.", "the grad scaler on float16: another loss curve, or other scales"),
    ("training.evaluation", "dropout left on"),
    ("training.", "another loss curve, weights or moments of the optimiser"),
    ("collective.ranks", "another split of the global batch over the ranks"),
    ("collective.gradients.", "a skipped all-reduce, or ranks that average otherwise"),
    ("collective.", "sums over ranks that are wrong, or depend on the size of a bucket"),
    ("metrics.", "a model that learns otherwise"),
)


def about(stage: str) -> str:
    """What a stage is there to catch.

    Raises:
        KeyError: nobody has said.
    """
    for beginning, sentence in STAGES:
        if stage.startswith(beginning):
            return sentence
    raise KeyError(f"nothing in {__name__} tells what {stage} is there to catch")
