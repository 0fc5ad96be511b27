"""`sampling.*`: 64 tokens from the model by each way of choosing the next one, under a fixed seed.

One decoding step serves all ways, each a row of the batch with uniform numbers of its own. A near-tie turns the
smallest jitter into another text, so the margin between the two best logits is kept at each step. No way uses
`torch.multinomial`: the token is the first whose cumulated probability exceeds the number drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from reprokit.probe.lfq import data, model
from reprokit.probe.recorder import Control, Stage

TOKENS = 64
PROMPT = 8
ROUNDS = 3
TEMPERATURE, TOP_K, TOP_P, PRESENCE, FREQUENCY = 0.7, 20, 0.9, 0.6, 0.4
NEXT_SEED = "the next seed"
RUNNER_UP = "the runner-up where it came closest"
REVERSED = "every reduction over the width in reversed order"

# logits (V,), how often each token was chosen before (V,) and a uniform number () → the next token ()
Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Texts:
    """What one round gives: tokens int64 (ways, 64) and margins float32 (ways, 64) of the two best logits."""

    tokens: torch.Tensor
    margins: torch.Tensor


def sampling_stages(device: torch.device, seed: int) -> Iterator[Stage]:
    """The text of each way with its margins, the choice between planted ties, and how many texts the rounds gave."""
    config = model.Config(context=PROMPT + TOKENS)
    weights = {
        name: weight.to(device) for name, weight in model.quantised_weights(model.raw_weights(config)).items()
    }
    prompt = data.tokens(device)[:1, :PROMPT]

    def decoded(
        seed: int, ways: Mapping[str, Way] = WAYS, head: torch.Tensor | None = None, reverse: bool = False
    ) -> Texts:
        used = weights if head is None else {**weights, "head": head}
        return decode(model.Transformer(config, used, reverse=reverse), prompt, ways, seed)

    @cache
    def texts(seed: int) -> Texts:
        return decoded(seed)

    def runner_up() -> torch.Tensor:
        """Greedy's text with the second best token where it came closest."""
        return decoded(seed, {"greedy": _overruled(int(texts(seed).margins[0].argmin()))}).tokens[0]

    reversed_texts = cache(lambda: decoded(seed, reverse=True))
    for row, name in enumerate(WAYS):
        drawn = Control(NEXT_SEED, lambda row=row: texts(seed + 1).tokens[row])
        yield Stage(
            f"sampling.{name}.tokens",
            "sort" if name == "greedy" else "rng",
            lambda row=row: texts(seed).tokens[row],
            control=Control(RUNNER_UP, runner_up) if name == "greedy" else drawn,
        )
        yield Stage(
            f"sampling.{name}.margins",
            "metric",
            lambda row=row: texts(seed).margins[row],
            inputs=(f"sampling.{name}.tokens",),
            control=Control(REVERSED, lambda row=row: reversed_texts().margins[row]),
        )
    twins = weights["head"][::2].repeat_interleave(2, 0)
    tied = {"greedy": greedy, "top_k": top_k}
    yield Stage(
        "sampling.ties.tokens",
        "sort",
        lambda: decoded(seed, tied, twins).tokens,
        control=Control(
            "the second of each two equal tokens moved by one ulp",
            lambda: decoded(seed, tied, _apart(twins)).tokens,
        ),
    )
    yield Stage(
        "sampling.rounds.unique",
        "rng",
        lambda: _unique([texts(seed), *(decoded(seed) for _ in range(1, ROUNDS))]),
        control=Control("the next seed in one round", lambda: _unique([texts(seed), texts(seed + 1)])),
    )


def decode(forward: model.Transformer, prompt: torch.Tensor, ways: Mapping[str, Way], seed: int) -> Texts:
    """64 tokens behind a prompt (1, T) by each of `ways`, through a cache of keys and values."""
    device, vocabulary = prompt.device, forward.config.vocabulary
    numbers = torch.rand((TOKENS, len(ways)), generator=torch.Generator().manual_seed(seed)).to(device)
    counts = torch.zeros(len(ways), vocabulary, device=device)
    tokens, kept = prompt.expand(len(ways), -1), model.Cache()
    chosen, margins = [], []
    with torch.no_grad():
        for drawn in numbers:
            logits = forward(tokens, cache=kept)[:, -1]  # (ways, V)
            best = logits.topk(2).values
            margins.append(best[:, 0] - best[:, 1])
            rows = zip(ways.values(), logits, counts, drawn, strict=True)
            tokens = torch.stack([way(*row) for way, *row in rows]).unsqueeze(1)  # (ways, 1)
            counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=counts.dtype))
            chosen.append(tokens)
    return Texts(torch.cat(chosen, dim=1), torch.stack(margins, dim=1))


def greedy(logits: torch.Tensor, counts: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The best token, the first among equals."""
    return logits.argmax()


def temperature(logits: torch.Tensor, counts: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """From softmax(logits / 0.7)."""
    return drawn_from(torch.softmax(logits / TEMPERATURE, -1), drawn)


def top_k(logits: torch.Tensor, counts: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """From the 20 best (Fan, Lewis, Dauphin 2018)."""
    order = ranked(logits)[:TOP_K]
    return order[drawn_from(torch.softmax(logits[order], -1), drawn)]


def top_p(logits: torch.Tensor, counts: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """From the fewest of the best whose probabilities reach 0.9 (Holtzman et al. 2020)."""
    order = ranked(logits)
    probability = torch.softmax(logits[order], -1)
    kept = cumulated(probability) - probability < TOP_P
    nucleus = torch.where(kept, probability, 0.0)
    return order[drawn_from(nucleus / nucleus.sum(), drawn)]


def presence(logits: torch.Tensor, counts: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """From softmax, 0.6 taken from the logit of every token that was chosen before."""
    return drawn_from(torch.softmax(logits - PRESENCE * (counts > 0), -1), drawn)


def frequency(logits: torch.Tensor, counts: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """From softmax, 0.4 taken from a logit each time that its token was chosen before."""
    return drawn_from(torch.softmax(logits - FREQUENCY * counts, -1), drawn)


def ranked(logits: torch.Tensor) -> torch.Tensor:
    """int64 (V,): the tokens from best to worst, equals in their order."""
    return torch.sort(logits, descending=True, stable=True).indices


def drawn_from(probability: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The first index whose cumulated probability exceeds a number in [0, 1)."""
    index = torch.searchsorted(cumulated(probability), drawn, right=True)
    return index.clamp(max=len(probability) - 1)


def cumulated(probability: torch.Tensor) -> torch.Tensor:
    """The running sums, taken on the CPU: torch has no deterministic form of them on a GPU, and refuses in strict."""
    return probability.cpu().cumsum(-1).to(probability.device)


WAYS: dict[str, Way] = {
    "greedy": greedy,
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "presence": presence,
    "frequency": frequency,
}


def _overruled(step: int) -> Way:
    """Greedy, but for one step, where the runner-up is taken."""
    steps = iter(range(TOKENS))
    return lambda logits, counts, drawn: ranked(logits)[1] if next(steps) == step else logits.argmax()


def _unique(rounds: list[Texts]) -> torch.Tensor:
    """int64 (ways,): how many different texts each way gave over the rounds."""
    texts = zip(*(one.tokens.tolist() for one in rounds), strict=True)
    return torch.tensor([len(set(map(tuple, same))) for same in texts])


def _apart(head: torch.Tensor) -> torch.Tensor:
    """The rows in pairs of equals, the second of each moved by one ulp in all its elements."""
    moved = head.clone()
    moved[1::2] = torch.nextafter(head[1::2], torch.full_like(head[1::2], torch.inf))
    return moved
