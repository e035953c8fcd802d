"""Times of a file -> seconds since its first request.

Where neither the name of the column nor the kind of file says the unit, a written rule does, and the import
says that it was applied: stamps as large as those since 1970 give their unit away (seconds from 1e9, ms from
1e11, us from 1e14, ns from 1e17); whole numbers in JSON lines are milliseconds, as in Mooncake's traces;
anything else is seconds. A wrong guess shows in the duration and the rate, which the finding states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.traffic.errors import refuse
from planner.traffic.growing import parts
from planner.traffic.layout import S_PER_UNIT, UNIT_NAMES, UNITS_PER_S, Layout, Unit
from planner.traffic.model import MAX_DURATION_S, Finding, Floats, Integers


@dataclass(frozen=True, slots=True)
class Clock:
    """Arrivals in the file's order (float64[N], the earliest at 0), the unit read, the first time as text
    of the file's own scale, and a finding if the unit was assumed."""

    arrival_s: Floats
    unit: Unit
    first: str
    finding: Finding | None


def seconds_from_first(
    times: Floats | Integers, layout: Layout, *, stamps: bool, chosen: Unit | None
) -> Clock:
    """`times` in the file's unit, N >= 1; their memory becomes that of the arrivals. TrafficError for a span that no
    trace has."""
    unit, assumed = _unit(times, layout, stamps, chosen)
    first = times.min()
    arrival_s = _seconds_since(first, times, unit)
    span_s = float(arrival_s.max())
    if span_s > MAX_DURATION_S:
        message = (
            f"The times span {span_s / 86_400 / 365.25:,.0f} years: they are of several origins or units, or "
            f"not in {UNIT_NAMES.get(unit, 'order')}."
        )
        raise refuse(message, code="time_span", field="time_unit")
    shown = str(np.datetime64(int(first), "ns")) if stamps else repr(first.item())
    return Clock(arrival_s, unit, shown, _assumption(unit, arrival_s) if assumed else None)


def _seconds_since(first: np.float64 | np.int64, times: Floats | Integers, unit: Unit) -> Floats:
    seconds = times.view(np.float64)  # 8 bytes either way
    for part in parts(len(times)):
        # Subtracting before dividing keeps integers exact: 7 digits of a stamp, nanoseconds since 1970.
        since = times[part] - first
        seconds[part] = since * S_PER_UNIT[unit] if unit in S_PER_UNIT else since / UNITS_PER_S[unit]
    return seconds


def _unit(times: Floats | Integers, layout: Layout, stamps: bool, chosen: Unit | None) -> tuple[Unit, bool]:
    if stamps:
        return "stamp", False
    if chosen or layout.unit:
        return chosen or layout.unit or "s", False
    smallest = float(times.min())
    since_1970: tuple[tuple[float, Unit], ...] = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e9, "s"))
    for least, unit in since_1970:
        if smallest >= least:
            return unit, True
    whole = times.dtype == np.int64 or not any((times[part] % 1).any() for part in parts(len(times)))
    return ("ms" if layout.json and whole else "s"), True


def _assumption(unit: Unit, arrival_s: Floats) -> Finding:
    span_s = float(arrival_s.max())
    rate = f", {(len(arrival_s) - 1) / span_s:.4g} requests per second" if span_s > 0 else ""
    message = (
        f"Times were read as {UNIT_NAMES[unit]}, which the file does not say: {span_s:.6g} s long{rate}."
    )
    return Finding("time_unit", message, len(arrival_s))
