"""Stretches of a traffic that may each have a number of replicas of their own: hours of the day, or equal parts.

A traffic of several days has each hour of the day several times, one stretch a day; `schedule` folds them. Times are
seconds of the traffic's own clock, which begins with its first request: what time of day that was, a traffic does not
say, so it is an input (midnight unless it is given).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

By = Literal["hours", "parts"]
Kind = Literal["auto", "none", "hours", "parts"]
DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
LONG_S: Final = 6 * HOUR_S  # a traffic that lasts longer gets a schedule without being asked for one
MOST_PARTS: Final = 96
DEFAULT_PARTS: Final = 24


class PeriodError(ValueError):
    """Periods that cannot be: `.field` names the part, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Periods:
    """`parts`: into how many the traffic is cut. `first_request_s`: the time of day of its first request, for hours;
    a traffic does not say it."""

    by: By
    parts: int = 24
    first_request_s: float = 0.0

    def __post_init__(self) -> None:
        if self.by not in ("hours", "parts"):
            raise PeriodError("by", f"hours or parts, not {self.by!r}")
        if not 2 <= self.parts <= MOST_PARTS:
            raise PeriodError("parts", f"lies in 2..{MOST_PARTS}, not {self.parts}")
        if not 0.0 <= self.first_request_s < DAY_S:
            raise PeriodError(
                "first_request_s", f"a time of day is 0 to {DAY_S:,.0f} s, not {self.first_request_s:g}"
            )


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of the traffic: `start_s` to `end_s` after its first request, in period `period` of day `day`."""

    period: int
    day: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants: "auto" is hours for a traffic that lasts more than LONG_S, and nothing for others."""

    kind: Kind = "auto"
    parts: int = DEFAULT_PARTS
    first_request_s: float = 0.0

    def periods_of(self, span_s: float) -> Periods | None:
        """Of a traffic that lasts so long; None: no schedule."""
        if self.kind == "none" or (self.kind == "auto" and span_s <= LONG_S):
            return None
        return Periods("parts" if self.kind == "parts" else "hours", self.parts, self.first_request_s)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def windows_of(span_s: float, periods: Periods) -> list[Window]:
    """The stretches of a traffic of `span_s` seconds (first to last request), in their order."""
    end_s = math.nextafter(span_s, math.inf)  # the last request belongs to the last stretch
    if periods.by == "parts":
        edges = [span_s * k / periods.parts for k in range(periods.parts)] + [end_s]
        return [Window(k, 0, edges[k], edges[k + 1]) for k in range(periods.parts)]
    offset = periods.first_request_s
    first, last = int(offset // HOUR_S), int((offset + span_s) // HOUR_S)
    found = []
    for hour in range(first, last + 1):
        start, end = max(0.0, hour * HOUR_S - offset), min(end_s, (hour + 1) * HOUR_S - offset)
        found.append(Window(hour % 24, hour // 24, start, end))
    return found
