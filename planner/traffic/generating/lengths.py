"""Length distributions as described dataclasses: prompt and output together, with a rank correlation.

Dependence is a Gaussian copula: two correlated normals give the two shares at which each distribution is read, so each
keeps its own shape and Spearman's coefficient is what was asked for (its normal correlation is 2 sin(pi rho / 6),
Pearson 1907). Lengths are rounded to whole tokens, at least one; **the largest clips**: what is longer becomes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sin, sqrt
from typing import ClassVar

import numpy as np

from planner.traffic import described
from planner.traffic.model import MAX_TOKENS, Floats, Integers
from planner.traffic.source import Source

Pair = tuple[Integers, Integers]


def _median(label: str) -> float:
    found: float = described.number(label, "tokens", low=1, high=MAX_TOKENS)
    return found


def _sigma(label: str) -> float:
    found: float = described.number(label, "of the logarithm", low=0, high=5)
    return found


def _largest(label: str) -> int:
    found: int = described.whole(label, "tokens", low=1, high=MAX_TOKENS)
    return found


def _share(label: str) -> float:
    found: float = described.number(label, "of 1", low=0, high=1)
    return found


def _correlation() -> float:
    found: float = described.number(
        "Rank correlation", "", default=0.0, low=-1, high=1, help="Of prompt and output; 0: independent."
    )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLengths:
    TITLE: ClassVar = "Lognormal"
    ABOUT: ClassVar = "One hump on a logarithmic axis: a median and a width say all."

    prompt_median_tokens: float = _median("Prompt, median")
    prompt_sigma: float = _sigma("Prompt, sigma")
    prompt_largest_tokens: int = _largest("Prompt, at most")
    output_median_tokens: float = _median("Output, median")
    output_sigma: float = _sigma("Output, sigma")
    output_largest_tokens: int = _largest("Output, at most")
    rank_correlation: float = _correlation()

    def draw(self, source: Source, count: int) -> Pair:
        first, second = _normals(source.rng, count, self.rank_correlation)
        return (
            _whole(self.prompt_median_tokens * np.exp(self.prompt_sigma * first), self.prompt_largest_tokens),
            _whole(
                self.output_median_tokens * np.exp(self.output_sigma * second), self.output_largest_tokens
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureLengths:
    """A share of one lognormal, the rest of another, for prompts and for outputs."""

    TITLE: ClassVar = "Mixture of two lognormals"
    ABOUT: ClassVar = "Two humps: short ones and long ones, in a stated share."

    prompt_share: float = _share("Prompt, share of the first")
    prompt_median_tokens: float = _median("Prompt, first median")
    prompt_sigma: float = _sigma("Prompt, first sigma")
    prompt_other_median_tokens: float = _median("Prompt, second median")
    prompt_other_sigma: float = _sigma("Prompt, second sigma")
    prompt_largest_tokens: int = _largest("Prompt, at most")
    output_share: float = _share("Output, share of the first")
    output_median_tokens: float = _median("Output, first median")
    output_sigma: float = _sigma("Output, first sigma")
    output_other_median_tokens: float = _median("Output, second median")
    output_other_sigma: float = _sigma("Output, second sigma")
    output_largest_tokens: int = _largest("Output, at most")
    rank_correlation: float = _correlation()

    def draw(self, source: Source, count: int) -> Pair:
        first, second = _normals(source.rng, count, self.rank_correlation)
        prompt = _mixture_quantiles(
            _normal_share(first), self.prompt_share, (self.prompt_median_tokens, self.prompt_sigma),
            (self.prompt_other_median_tokens, self.prompt_other_sigma),
        )  # fmt: skip
        output = _mixture_quantiles(
            _normal_share(second), self.output_share, (self.output_median_tokens, self.output_sigma),
            (self.output_other_median_tokens, self.output_other_sigma),
        )  # fmt: skip
        return _whole(prompt, self.prompt_largest_tokens), _whole(output, self.output_largest_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalLengths:
    """Drawn with replacement from the requests of another traffic."""

    TITLE: ClassVar = "As in another traffic"
    ABOUT: ClassVar = "Lengths of requests of another traffic, drawn at random with replacement."

    traffic: str = described.traffic("Lengths of")
    drawn: str = described.choice(
        "Prompt and output", (("pairs", "of the same request"), ("apart", "of two requests: independent")),
        default="pairs",
    )  # fmt: skip

    def draw(self, source: Source, count: int) -> Pair:
        other = source.traffic(self.traffic)
        first = source.rng.integers(0, other.requests, count)
        second = first if self.drawn == "pairs" else source.rng.integers(0, other.requests, count)
        return other.prompt_tokens[first], other.output_tokens[second]


Lengths = LogNormalLengths | MixtureLengths | EmpiricalLengths
LENGTHS: dict[str, type[Lengths]] = {
    "lognormal": LogNormalLengths,
    "mixture": MixtureLengths,
    "empirical": EmpiricalLengths,
}


def _normals(rng: np.random.Generator, count: int, rank_correlation: float) -> tuple[Floats, Floats]:
    rho = 2 * sin(pi * rank_correlation / 6)
    first, other = rng.standard_normal(count), rng.standard_normal(count)
    return first, rho * first + sqrt(max(0.0, 1 - rho**2)) * other


def _normal_share(deviations: Floats) -> Floats:
    """Of a standard normal law: the share at or below."""
    from scipy.special import ndtr  # here, because reading a file draws nothing and need not load scipy

    share: Floats = ndtr(deviations)
    return share


def _mixture_quantiles(
    share: Floats, weight: float, first: tuple[float, float], second: tuple[float, float]
) -> Floats:
    """Where the mixture's distribution reaches each share: read off a fine grid of logarithms."""
    logs = [np.log(first[0]), np.log(second[0])]
    sigmas = [max(first[1], 1e-6), max(second[1], 1e-6)]
    parts = [m + s * np.linspace(-8, 8, 4_001) for m, s in zip(logs, sigmas, strict=True)]
    grid = np.unique(np.concatenate(parts))
    below = [_normal_share((grid - log) / sigma) for log, sigma in zip(logs, sigmas, strict=True)]
    cdf = weight * below[0] + (1 - weight) * below[1]
    keep = np.concatenate(([True], np.diff(cdf) > 0))
    lengths: Floats = np.exp(np.interp(share, cdf[keep], grid[keep]))
    return lengths


def _whole(lengths: Floats, largest: int) -> Integers:
    return np.clip(np.rint(np.minimum(lengths, 1e15)), 1, largest).astype(np.int64)
