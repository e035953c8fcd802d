"""Length distributions fitted to a traffic's lengths: one lognormal, a mixture of two by expectation-maximisation, or
the lengths themselves; each with the rank correlation of prompt and output."""

from __future__ import annotations

import numpy as np

from planner.traffic.dependence import rank_correlation
from planner.traffic.generating.lengths import EmpiricalLengths, Lengths, LogNormalLengths, MixtureLengths
from planner.traffic.model import Floats, Integers, Traffic

MAX_LENGTHS = 50_000
ROUNDS = 200
Lognormal = tuple[float, float]
"""Median in tokens, sigma of the logarithm."""


def fitted_lengths(traffic: Traffic, key: str) -> dict[str, Lengths]:
    """By kind; `key` is the traffic's id, for drawing from it."""
    prompt, output = traffic.prompt_tokens, traffic.output_tokens
    rho = float(f"{rank_correlation(prompt, output) or 0.0:.4g}")
    one = [_lognormal(tokens) for tokens in (prompt, output)]
    two = [_mixture(tokens) for tokens in (prompt, output)]
    return {
        "lognormal": LogNormalLengths(
            prompt_median_tokens=one[0][0], prompt_sigma=one[0][1], prompt_largest_tokens=int(prompt.max()),
            output_median_tokens=one[1][0], output_sigma=one[1][1], output_largest_tokens=int(output.max()),
            rank_correlation=rho,
        ),
        "mixture": MixtureLengths(
            prompt_share=two[0][0], prompt_median_tokens=two[0][1][0], prompt_sigma=two[0][1][1],
            prompt_other_median_tokens=two[0][2][0], prompt_other_sigma=two[0][2][1],
            prompt_largest_tokens=int(prompt.max()),
            output_share=two[1][0], output_median_tokens=two[1][1][0], output_sigma=two[1][1][1],
            output_other_median_tokens=two[1][2][0], output_other_sigma=two[1][2][1],
            output_largest_tokens=int(output.max()), rank_correlation=rho,
        ),
        "empirical": EmpiricalLengths(traffic=key),
    }  # fmt: skip


def _lognormal(tokens: Integers) -> Lognormal:
    """By moments of the logarithm, or by its quartiles where those come nearer: a clipped end moves only the first."""
    logs = np.log(tokens)
    low, middle, high = np.percentile(logs, [25, 50, 75]).tolist()
    candidates = [(float(logs.mean()), float(logs.std())), (middle, (high - low) / 1.349)]
    ordered = np.sort(logs)
    centre, sigma = min(candidates, key=lambda one: _distance(ordered, one))
    return _rounded(centre, sigma)


def _distance(ordered: Floats, law: tuple[float, float]) -> float:
    from scipy.special import ndtr  # here: whoever only reads what was fitted loads no scipy

    centre, sigma = law
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    # Ties count once, at their last place.
    last = np.append(ordered[1:] != ordered[:-1], True)
    return float(np.abs(ndtr((ordered[last] - centre) / max(sigma, 1e-6)) - share[last]).max())


def _mixture(tokens: Integers) -> tuple[float, Lognormal, Lognormal]:
    """Share of the first, the first and the second: the shorter lengths are the first."""
    logs = np.log(tokens[:: -(-len(tokens) // MAX_LENGTHS)].astype(np.float64))
    low, high = np.percentile(logs, [25, 75]).tolist()
    spread = max(float(logs.std()), 1e-3)
    share = np.array([0.5, 0.5])
    centre, sigma = np.array([low, high]), np.array([spread, spread])
    least = 0.05 * spread  # a hump no narrower: one length that is frequent is not a distribution
    for _ in range(ROUNDS):
        density = share / sigma * np.exp(-0.5 * ((logs[:, None] - centre) / sigma) ** 2)
        part = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-300)
        weight = np.maximum(part.sum(axis=0), 1e-9)
        before = centre
        share, centre = weight / weight.sum(), (part * logs[:, None]).sum(axis=0) / weight
        sigma = np.sqrt((part * (logs[:, None] - centre) ** 2).sum(axis=0) / weight).clip(least)
        if np.abs(centre - before).max() < 1e-6:
            break
    first, second = np.argsort(centre).tolist()
    return (
        float(f"{share[first]:.6g}"),
        _rounded(float(centre[first]), float(sigma[first])),
        _rounded(float(centre[second]), float(sigma[second])),
    )


def _rounded(centre: float, sigma: float) -> Lognormal:
    return max(1.0, float(f"{np.exp(centre):.6g}")), min(5.0, float(f"{sigma:.6g}"))
