"""Do probabilities mean what they say? Figures and a plot of pairs (probability told, did it hold).

Calibration error: over ten bins of the probability the mean of |share that held - mean probability|, weighted by their
counts (the expected calibration error, ECE). Chance alone gives some: `error_by_chance` says how much, for a teller
whose every probability is true. Units: shares of 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

BINS = 10
SIDE, LEFT, TOP, GAP = 300, 60, 70, 190
INK, GRID, MARK, BAND = "#1c2430", "#d6dbe3", "#0b62c4", "#e6f0e6"


@dataclass(frozen=True, slots=True)
class Bin:
    """Pairs whose probabilities lie in one tenth: how many, their mean probability, the share that held."""

    count: int
    told: float
    held: float


def bins_of(probability: NDArray[np.float64], held: NDArray[np.bool_]) -> list[Bin]:
    """Without empty ones. probability float64[N], held bool[N]."""
    place = np.minimum((probability * BINS).astype(int), BINS - 1)
    return [
        Bin(int(here.sum()), float(probability[here].mean()), float(held[here].mean()))
        for here in (place == b for b in range(BINS))
        if here.any()
    ]


def calibration_error(probability: NDArray[np.float64], held: NDArray[np.bool_]) -> float:
    return sum(b.count * abs(b.held - b.told) for b in bins_of(probability, held)) / len(held)


def error_by_chance(
    probability: NDArray[np.float64], count: int | None = None, seed: int = 0, trials: int = 2_000
) -> float:
    """The mean calibration error of a teller who is right: each pair holds with the probability told.

    count: of so many pairs, drawn from those given; default as many as there are.
    """
    random = np.random.default_rng(seed)
    errors = []
    for _ in range(trials):
        some = probability if count is None else random.choice(probability, count)
        errors.append(calibration_error(some, random.random(len(some)) < some))
    return float(np.mean(errors))


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 90 % interval of a share."""
    z = 1.6449
    middle, spread = (
        hits / count,
        z * math.sqrt(hits * (count - hits) / count**3 + z * z / (4 * count * count)),
    )
    low, high = ((middle + z * z / (2 * count) + sign * spread) / (1 + z * z / count) for sign in (-1, 1))
    return low, high


def plot_svg(bins: Sequence[Bin], coverage: Mapping[str, tuple[int, int]], notes: Sequence[str]) -> str:
    """A reliability diagram, and the shares of intervals that hold the truth (hits, of), as an SVG document."""
    height = TOP + SIDE + 70 + 16 * len(notes)
    width = LEFT + SIDE + GAP + SIDE + 30
    body = [*_reliability(bins), *_coverage(coverage)]
    body += [_text(LEFT, TOP + SIDE + 74 + 16 * i, note, "start", 11) for i, note in enumerate(notes)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _reliability(bins: Sequence[Bin]) -> Iterator[str]:
    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + SIDE * x, TOP + SIDE * (1 - y)

    yield _text(LEFT, TOP - 34, "P(objective holds): told against what held", "start", 14, bold=True)
    yield _text(LEFT, TOP - 16, "bars: 90 % interval of the share; numbers: pairs", "start", 11)
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield _line(*at(tick, 0), *at(tick, 1), GRID)
        yield _line(*at(0, tick), *at(1, tick), GRID)
        yield _text(at(tick, 0)[0], TOP + SIDE + 18, f"{100 * tick:.0f}", "middle", 11)
        yield _text(LEFT - 8, at(0, tick)[1] + 4, f"{100 * tick:.0f}", "end", 11)
    yield _line(*at(0, 0), *at(1, 1), INK, "5 4")
    for b in bins:
        low, high = share_interval(round(b.held * b.count), b.count)
        x, y = at(b.told, b.held)
        yield _line(x, at(0, low)[1], x, at(0, high)[1], MARK)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{MARK}"/>'
        yield _text(x + 8, y + 4, str(b.count), "start", 10)
    yield _text(LEFT + SIDE / 2, TOP + SIDE + 40, "mean probability told [%]", "middle", 12)
    yield _text(16, TOP + SIDE / 2, "share that held [%]", "middle", 12, turned=True)


def _coverage(coverage: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    left, low, high = LEFT + SIDE + GAP, 0.7, 1.0

    def at(share: float) -> float:
        return left + SIDE * (min(max(share, low), high) - low) / (high - low)

    yield _text(left, TOP - 34, "90 % intervals that hold the truth", "start", 14, bold=True)
    yield _text(left, TOP - 16, "green: 85 to 95 %; bars: 90 % interval of the share", "start", 11)
    yield f'<rect x="{at(0.85):.1f}" y="{TOP}" width="{at(0.95) - at(0.85):.1f}" height="{SIDE}" fill="{BAND}"/>'
    for tick in (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0):
        yield _line(at(tick), TOP, at(tick), TOP + SIDE, GRID)
        yield _text(at(tick), TOP + SIDE + 18, f"{100 * tick:.0f}", "middle", 11)
    for row, (name, (hits, count)) in enumerate(coverage.items()):
        y = TOP + SIDE * (row + 0.5) / len(coverage)
        least, most = share_interval(hits, count)
        yield _line(at(least), y, at(most), y, MARK)
        yield f'<circle cx="{at(hits / count):.1f}" cy="{y:.1f}" r="4.5" fill="{MARK}"/>'
        yield _text(left - 8, y - 3, name, "end", 12)
        yield _text(left - 8, y + 12, f"{hits} of {count}", "end", 10)
    yield _text(left + SIDE / 2, TOP + SIDE + 40, "share of the truths [%]", "middle", 12)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    wide = 1 if colour == GRID else 1.6
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{wide}"{dashed}/>'
    )


def _text(
    x: float, y: float, words: str, anchor: str, size: int, *, bold: bool = False, turned: bool = False
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}"{weight}{turn}>'
        f"{escape(words)}</text>"
    )
