"""Objectives as people write them: `ttft:p95:1.5`, `chat=itl:p99:0.05`, `goodput:p99:ttft=1.0+tpot=0.05`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final, cast

from planner.search.objectives import (
    GOODPUT,
    METRICS,
    Latency,
    Metric,
    Objective,
    ObjectiveError,
    check_objectives,
)

FORM: Final = "metric:percentile:seconds, such as ttft:p95:1.5"
_PERCENTILE = re.compile(r"p?(\d{1,2}(?:\.\d{1,4})?)", re.IGNORECASE | re.ASCII)


def parse_objective(text: str) -> Objective:
    """Read `[CLASS=]ttft:p95:1.5` (also `99.9` or `P99.9`; limit in seconds), or `[CLASS=]goodput:p99:` and limits
    joined by `+`. Raises ObjectiveError."""
    parts = [part.strip() for part in text.rsplit(":", 2)]
    if len(parts) != 3:
        raise ObjectiveError("objective", f"write {FORM}, not {text[:80]!r}")
    named, percentile, limit = parts
    of, equals, metric = named.rpartition("=")
    if ":" in metric:
        raise ObjectiveError("objective", f"write {FORM}, not {text[:80]!r}")
    metric = metric.strip().lower()
    if metric not in (*METRICS, GOODPUT):
        names = ", ".join((*METRICS, GOODPUT))
        raise ObjectiveError("metric", f"unknown metric {metric[:40]!r}: use one of {names}")
    found = _PERCENTILE.fullmatch(percentile)
    if found is None:
        raise ObjectiveError(
            "percentile",
            f"write p50, p99 or p99.9, above 0 and below 100, with at most 4 decimals, not {percentile[:40]!r}",
        )
    request_class = of.strip() if equals else None
    if metric == GOODPUT:
        return Objective(GOODPUT, float(found.group(1)), 1.0, request_class, _limits(limit))
    return Objective(cast(Metric, metric), float(found.group(1)), _limit_s(limit), request_class)


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """Read several; none at all, too many, or the same percentile of the same metric twice, is refused."""
    return check_objectives(parse_objective(text) for text in texts)


def _limits(text: str) -> tuple[tuple[Latency, float], ...]:
    """`ttft=1.0+tpot=0.05`, in the order of METRICS."""
    found: list[tuple[Latency, float]] = []
    for part in text.split("+"):
        metric, equals, limit = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ObjectiveError(
                "limit", f"write limits of {GOODPUT} as ttft=1.0+tpot=0.05, not {part[:40]!r}"
            )
        found.append((cast(Latency, metric.lower()), _limit_s(limit)))
    return tuple(sorted(found, key=lambda each: METRICS.index(each[0]) if each[0] in METRICS else 0))


def _limit_s(text: str) -> float:
    try:
        # float() also reads "1_000", "nan" and "infinity": the first is refused here, the others by Objective.
        return float(text) if "_" not in text else math.nan
    except ValueError:
        raise ObjectiveError("limit", f"a limit is a number of seconds, not {text[:40]!r}") from None
