"""Objectives: a latency metric, a percentile over pooled samples, and the limit it must not exceed; or several limits
that a share of the requests must meet all at once.

Metrics (seconds): ttft = arrival to first token; itl = each gap between two tokens of a request, pooled over
requests; tpot = a request's mean gap, over requests with at least two tokens; e2e = arrival to last token.
goodput = joint attainment (DistServe, OSDI 2024): `goodput:p99:ttft=1+tpot=0.05` asks that at least 99 % of the
requests have a TTFT of at most 1 s and a TPOT of at most 50 ms each. A request's value is the largest of its metrics'
shares of their limits (a limit on itl is met by the largest gap, simulation/attainment.py): it is within all of them
where that is at most 1, and at least 99 % of the requests are where the 99th percentile of it is. So goodput is one
more percentile with a limit, of 1 instead of seconds, with a margin like the others'.

An objective may be for the requests of one class of the traffic. One without a class is for the requests of all
classes that have none of their own.

How many samples a percentile needs: with N samples the largest one is an upper 95 % confidence bound of the
p-quantile only if p^N <= 0.05 (Wilks 1941). With fewer, no number in the sample bounds the percentile and the
estimate is little more than the maximum: the planner shows it and does not claim it. Gaps of one request are
not independent, so an ITL percentile also needs as many requests as p95 would, or as p itself if less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from planner.search.seconds import seconds_text, three_digits

Latency = Literal["ttft", "itl", "tpot", "e2e"]
Metric = Literal["ttft", "itl", "tpot", "e2e", "goodput"]
METRICS: Final[tuple[Latency, ...]] = get_args(Latency)
GOODPUT: Final = "goodput"
MAX_OBJECTIVES: Final = 16

_CONFIDENCE = 0.95
_CLUSTER_PERCENTILE = 95.0
_MAX_LIMIT_S = 86_400.0
_MIN_LIMIT_S = 1e-9  # below lies nothing that is measured, and what no database keeps


class ObjectiveError(ValueError):
    """An objective that cannot be used: `.field` (metric, percentile, limit or objectives), `.message`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Objective:
    """`metric` at `percentile` (0..100, both excluded) must be at most `limit_s` seconds, for the requests of
    `request_class` (None: see the module).

    goodput: `limits` are seconds by metric, in the order of METRICS, and `limit_s` is 1, a share of them.
    """

    metric: Metric
    percentile: float
    limit_s: float
    request_class: str | None = None
    limits: tuple[tuple[Latency, float], ...] = ()

    def __post_init__(self) -> None:
        if self.metric not in (*METRICS, GOODPUT):
            raise ObjectiveError("metric", f"unknown metric {self.metric!r}: use one of {_NAMES}")
        if not 0.0 < self.percentile < 100.0:
            raise ObjectiveError(
                "percentile", f"a percentile lies above 0 and below 100, not {self.percentile:g}"
            )
        if self.request_class is not None and not self.request_class.strip():
            raise ObjectiveError("request_class", "name the class before the '=', or leave both out")
        if self.metric == GOODPUT:
            _check_limits(self.limits, self.limit_s)
        elif self.limits:
            raise ObjectiveError("limit", f"several limits go with {GOODPUT}, not with {self.metric}")
        else:
            _check_limit(self.limit_s)

    @classmethod
    def goodput(
        cls, percentile: float, limits_s: Mapping[Latency, float], request_class: str | None = None
    ) -> Objective:
        """At least `percentile` per cent of the requests meet all of `limits_s` (seconds by metric)."""
        ordered = tuple((metric, limits_s[metric]) for metric in METRICS if metric in limits_s)
        return cls(GOODPUT, percentile, 1.0, request_class, ordered)

    @property
    def is_joint(self) -> bool:
        return self.metric == GOODPUT

    @property
    def key(self) -> str:
        """`itl:p99`, `chat=itl:p99`: which percentile of which metric, for whom, without the limit."""
        of = "" if self.request_class is None else f"{self.request_class}="
        return f"{of}{self.metric}:p{self.percentile:g}"

    @property
    def spec(self) -> str:
        """`itl:p99:0.05`, the form `parse_objective` reads."""
        if self.is_joint:
            return f"{self.key}:{'+'.join(f'{metric}={limit:.15g}' for metric, limit in self.limits)}"
        return f"{self.key}:{self.limit_s:.15g}"

    @property
    def label(self) -> str:
        """`ITL p99`, `chat: ITL p99`, the form people read."""
        return label_of(self.metric, self.percentile, self.request_class)

    @property
    def goal(self) -> str:
        """What must hold, in words: `ITL p99 <= 50 ms`."""
        if not self.is_joint:
            return f"{self.label} <= {seconds_text(self.limit_s)}"
        of = "requests" if self.request_class is None else f"requests of class {self.request_class}"
        limits = " and ".join(f"{metric.upper()} <= {seconds_text(limit)}" for metric, limit in self.limits)
        return f"{limits} for {three_digits(self.percentile)} % of {of}"

    @property
    def samples_needed(self) -> int:
        """Fewest samples for which the percentile is claimed."""
        return _samples_needed(self.percentile)

    def text(self, value: float) -> str:
        """A value of the metric: seconds; of goodput a share of its limits."""
        return f"{three_digits(100 * value)} % of the limits" if self.is_joint else seconds_text(value)

    def exceeded(self, value: float, at_least: bool = False) -> str:
        """`ITL p99 [at least] 70 ms > 50 ms`."""
        bound = "100 %" if self.is_joint else seconds_text(self.limit_s)
        return f"{self.label} {'at least ' if at_least else ''}{self.text(value)} > {bound}"

    def claimable(self, samples: int, requests: int) -> bool:
        """Whether `samples` values from `requests` requests carry this percentile."""
        cluster = _samples_needed(min(self.percentile, _CLUSTER_PERCENTILE))
        return samples >= self.samples_needed and requests >= cluster

    def margin(self, predicted_s: float) -> float:
        """Share of the limit that is left (negative: exceeded)."""
        return (self.limit_s - predicted_s) / self.limit_s

    def parts(self) -> tuple[Objective, ...]:
        """Percentiles that must hold for this one to hold: of goodput each limit by itself but itl, whose percentile
        is of gaps and not of requests; else itself."""
        if not self.is_joint:
            return (self,)
        return tuple(
            Objective(metric, self.percentile, limit, self.request_class)
            for metric, limit in self.limits
            if metric != "itl"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "metric": self.metric,
            "percentile": self.percentile,
            "limit": self.limit_s,
            "limits": dict(self.limits) or None,
            "request_class": self.request_class,
        }


_NAMES: Final = ", ".join((*METRICS, GOODPUT))


def label_of(metric: str, percentile: float, request_class: str | None = None) -> str:
    """`TTFT p95`, `goodput p99`, `chat: TTFT p95`."""
    name = metric if metric == GOODPUT else metric.upper()
    return f"{'' if request_class is None else f'{request_class}: '}{name} p{percentile:g}"


def label_of_key(key: str) -> str:
    """The label of an `Objective.key`."""
    of, equals, rest = key.rpartition("=")
    metric, _, percentile = rest.rpartition(":p")
    return label_of(metric, float(percentile), of if equals else None)


def _samples_needed(percentile: float) -> int:
    return math.ceil(math.log(1.0 - _CONFIDENCE) / math.log(percentile / 100.0))


def _check_limit(limit_s: float) -> None:
    if not (math.isfinite(limit_s) and _MIN_LIMIT_S <= limit_s <= _MAX_LIMIT_S):
        raise ObjectiveError(
            "limit", f"a limit is above 0 s and at most {_MAX_LIMIT_S:,.0f} s, not {limit_s:g}"
        )


def _check_limits(limits: tuple[tuple[Latency, float], ...], limit: float) -> None:
    if not limits or limit != 1.0:
        raise ObjectiveError("limit", f"{GOODPUT} needs a limit for one metric or more, such as ttft=1.0")
    for metric, limit_s in limits:
        if metric not in METRICS:
            raise ObjectiveError("metric", f"{GOODPUT} limits {', '.join(METRICS)}, not {str(metric)[:40]!r}")
        _check_limit(limit_s)
    if len({metric for metric, _ in limits}) < len(limits):
        raise ObjectiveError("limit", f"{GOODPUT} has one limit for each metric")


def check_objectives(objectives: Iterable[Objective]) -> tuple[Objective, ...]:
    """`objectives` themselves, or ObjectiveError for an empty, too large or contradictory set."""
    given = tuple(objectives)
    if not given:
        raise ObjectiveError(
            "objectives", "give at least one objective: metric:percentile:seconds, such as ttft:p95:1.5"
        )
    if len(given) > MAX_OBJECTIVES:
        raise ObjectiveError("objectives", f"{len(given)} objectives: at most {MAX_OBJECTIVES} are asked for")
    seen: set[str] = set()
    for objective in given:
        if objective.key in seen:
            raise ObjectiveError("objectives", f"{objective.label} is given twice")
        seen.add(objective.key)
    return given
