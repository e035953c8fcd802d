"""Objectives: a latency metric, a percentile over pooled samples, and the limit it must not exceed.

Metrics (seconds): ttft = arrival to first token; itl = each gap between two tokens of a request, pooled over
requests; tpot = a request's mean gap, over requests with at least two tokens; e2e = arrival to last token.

How many samples a percentile needs: with N samples the largest one is an upper 95 % confidence bound of the
p-quantile only if p^N <= 0.05 (Wilks 1941). With fewer, no number in the sample bounds the percentile and the
estimate is little more than the maximum: the planner shows it and does not claim it. Gaps of one request are
not independent, so an ITL percentile also needs as many requests as p95 would, or as p itself if less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

Metric = Literal["ttft", "itl", "tpot", "e2e"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)

_PERCENTILE = re.compile(r"p?(\d{1,2}(?:\.\d{1,4})?)", re.IGNORECASE | re.ASCII)
_CONFIDENCE = 0.95
_CLUSTER_PERCENTILE = 95.0
_MAX_LIMIT_S = 86_400.0
_FORM = "metric:percentile:seconds, such as ttft:p95:1.5"


class ObjectiveError(ValueError):
    """An objective that cannot be used: `.field` (metric, percentile, limit or objectives), `.message`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Objective:
    """`metric` at `percentile` (0..100, both excluded) must be at most `limit_s` seconds."""

    metric: Metric
    percentile: float
    limit_s: float

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ObjectiveError("metric", f"unknown metric {self.metric!r}: use one of {', '.join(METRICS)}")
        if not 0.0 < self.percentile < 100.0:
            raise ObjectiveError(
                "percentile", f"a percentile lies above 0 and below 100, not {self.percentile:g}"
            )
        if not (math.isfinite(self.limit_s) and 0.0 < self.limit_s <= _MAX_LIMIT_S):
            raise ObjectiveError(
                "limit", f"a limit is above 0 s and at most {_MAX_LIMIT_S:,.0f} s, not {self.limit_s:g}"
            )

    @property
    def key(self) -> str:
        """`itl:p99`: which percentile of which metric, without the limit."""
        return f"{self.metric}:p{self.percentile:g}"

    @property
    def spec(self) -> str:
        """`itl:p99:0.05`, the form `parse_objective` reads."""
        return f"{self.key}:{self.limit_s:.15g}"

    @property
    def label(self) -> str:
        """`ITL p99`, the form people read."""
        return f"{self.metric.upper()} p{self.percentile:g}"

    @property
    def samples_needed(self) -> int:
        """Fewest samples for which the percentile is claimed."""
        return _samples_needed(self.percentile)

    def claimable(self, samples: int, requests: int) -> bool:
        """Whether `samples` values from `requests` requests carry this percentile."""
        cluster = _samples_needed(min(self.percentile, _CLUSTER_PERCENTILE))
        return samples >= self.samples_needed and requests >= cluster

    def margin(self, predicted_s: float) -> float:
        """Share of the limit that is left (negative: exceeded)."""
        return (self.limit_s - predicted_s) / self.limit_s


def _samples_needed(percentile: float) -> int:
    return math.ceil(math.log(1.0 - _CONFIDENCE) / math.log(percentile / 100.0))


def parse_objective(text: str) -> Objective:
    """Read `ttft:p95:1.5` (also `99.9` or `P99.9`; limit in seconds). Raises ObjectiveError."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 3:
        raise ObjectiveError("objective", f"write {_FORM}, not {text[:80]!r}")
    metric, percentile, limit = parts
    if metric.lower() not in METRICS:
        raise ObjectiveError("metric", f"unknown metric {metric[:40]!r}: use one of {', '.join(METRICS)}")
    found = _PERCENTILE.fullmatch(percentile)
    if found is None:
        raise ObjectiveError(
            "percentile",
            f"write p50, p99 or p99.9, above 0 and below 100, with at most 4 decimals, not {percentile[:40]!r}",
        )
    return Objective(cast(Metric, metric.lower()), float(found.group(1)), _limit_s(limit))


def _limit_s(text: str) -> float:
    try:
        # float() also reads "1_000", "nan" and "infinity": the first is refused here, the others by Objective.
        return float(text) if "_" not in text else math.nan
    except ValueError:
        raise ObjectiveError("limit", f"a limit is a number of seconds, not {text[:40]!r}") from None


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """Read several; none at all, or the same percentile of the same metric twice, is refused."""
    return check_objectives(tuple(parse_objective(text) for text in texts))


def check_objectives(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """`objectives` themselves, or ObjectiveError for an empty or contradictory set."""
    if not objectives:
        raise ObjectiveError("objectives", f"give at least one objective: {_FORM}")
    seen: set[str] = set()
    for objective in objectives:
        if objective.key in seen:
            raise ObjectiveError("objectives", f"{objective.label} is given twice")
        seen.add(objective.key)
    return objectives
