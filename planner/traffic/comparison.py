"""Two traffics beside each other: what differs by how much, and by more than chance.

Each figure of the second is divided by that of the first. The interval of the ratio comes from resampling both
(bootstrap.py); where it leaves out 1 the two differ by more than one would see in two stretches of the same
traffic. The rank correlation is compared by its difference. Kolmogorov-Smirnov distances compare whole
distributions; gaps are divided by their mean first, so that their shape is compared and not the rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic import bootstrap
from planner.traffic.curves import WINDOWS_S, index_of_dispersion, interarrival_cv
from planner.traffic.dependence import rank_correlation
from planner.traffic.distances import ks_chance, ks_distance
from planner.traffic.model import Floats, Traffic

RESAMPLES = 1_000
PERCENTILES = (50.0, 90.0, 99.0)
LEAST = 0.005  # of the ratio: 7,437 tokens against 7,436 is no difference, however certain it is


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both; `ratio` is second / first, with its 95 % interval. None: does not exist."""

    name: str
    unit: str
    first: float | None
    second: float | None
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool | None:
        """By more than chance, and by half a percent at least; None where nobody can say."""
        if self.ratio is None or self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high and abs(self.ratio - 1) >= LEAST


@dataclass(frozen=True, slots=True)
class Distance:
    """Kolmogorov-Smirnov distance of one distribution; `chance` is what two samples of one law exceed in 5 % of cases
    if requests were independent."""

    name: str
    distance: float
    chance: float


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: tuple[Row, ...]
    distances: tuple[Distance, ...]
    rank_correlations: tuple[float | None, float | None]
    requests: tuple[int, int]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        rows = [{**asdict(row), "differs": row.differs} for row in self.rows]
        return {**asdict(self), "rows": rows, "distances": [asdict(one) for one in self.distances],
                "rank_correlations": list(self.rank_correlations), "requests": list(self.requests)}  # fmt: skip

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Comparison:
        """Of what `to_dict` said."""
        rows = ({key: value for key, value in row.items() if key != "differs"} for row in said["rows"])
        first, second = said["rank_correlations"]
        return cls(
            tuple(Row(**row) for row in rows),
            tuple(Distance(**one) for one in said["distances"]),
            (first, second),
            (said["requests"][0], said["requests"][1]),
            said["seed"],
        )


def compare(first: Traffic, second: Traffic, *, seed: int = 0, resamples: int = RESAMPLES) -> Comparison:
    """The second against the first. The same seed gives the same intervals."""
    both = (first, second)
    rng = np.random.default_rng(seed)
    gaps = [bootstrap.gap_figures(one.arrival_s, resamples, rng) for one in both]
    rows = [
        _row("rate", "1/s", first.rate_per_s, second.rate_per_s, gaps[0][0], gaps[1][0]),
        _row("interarrival_cv", "", interarrival_cv(first.arrival_s), interarrival_cv(second.arrival_s),
             gaps[0][1], gaps[1][1]),
    ]  # fmt: skip
    shortest_s = min(first.duration_s, second.duration_s)
    for window_s in WINDOWS_S:
        if shortest_s // window_s >= bootstrap.FEWEST_BLOCKS:
            a, b = (index_of_dispersion(one.arrival_s, window_s) for one in both)
            draws = [bootstrap.dispersions(one.arrival_s, window_s, resamples, rng) for one in both]
            rows.append(_row(f"dispersion_{window_s:g}_s", "variance / mean", a, b, draws[0], draws[1]))
    for name in ("prompt_tokens", "output_tokens"):
        rows += _lengths(name, getattr(first, name), getattr(second, name), resamples, rng)
    return Comparison(
        rows=tuple(rows),
        distances=tuple(_distances(first, second)),
        rank_correlations=(
            rank_correlation(first.prompt_tokens, first.output_tokens),
            rank_correlation(second.prompt_tokens, second.output_tokens),
        ),
        requests=(first.requests, second.requests),
        seed=seed,
    )


def _lengths(
    name: str, first: NDArray[Any], second: NDArray[Any], resamples: int, rng: np.random.Generator
) -> list[Row]:
    draws = [bootstrap.means(one, resamples, rng) for one in (first, second)]
    rows = [_row(f"{name}_mean", "tokens", float(first.mean()), float(second.mean()), draws[0], draws[1])]
    ordered = [np.sort(first), np.sort(second)]
    for percentile in PERCENTILES:
        a, b = (float(np.percentile(one, percentile)) for one in ordered)
        draws = [bootstrap.quantiles(one, percentile / 100, resamples, rng) for one in ordered]
        rows.append(_row(f"{name}_p{percentile:g}", "tokens", a, b, draws[0], draws[1]))
    return rows


def _row(
    name: str, unit: str, first: float | None, second: float | None, first_draws: Floats, second_draws: Floats
) -> Row:
    ratio = second / first if first and second is not None else None
    count = min(len(first_draws), len(second_draws))
    low, high = None, None
    if ratio is not None and count and (first_draws[:count] > 0).all():
        found = bootstrap.interval(second_draws[:count] / first_draws[:count])
        low, high = found if found is not None else (None, None)
    return Row(name, unit, first, second, ratio, low, high)


def _distances(first: Traffic, second: Traffic) -> list[Distance]:
    pairs: list[tuple[str, NDArray[Any], NDArray[Any]]] = [
        ("prompt_tokens", first.prompt_tokens, second.prompt_tokens),
        ("output_tokens", first.output_tokens, second.output_tokens),
    ]
    if first.duration_s > 0 and second.duration_s > 0:
        relative = [np.diff(one.arrival_s) * (one.rate_per_s or 0.0) for one in (first, second)]
        pairs.append(("gaps", relative[0], relative[1]))
    return [Distance(name, ks_distance(a, b), ks_chance(len(a), len(b))) for name, a, b in pairs]
