"""Is the offered load more than the replica can serve?

Above capacity the number of requests in the system grows for as long as requests arrive, at the rate (offered -
served); below it, it settles. So the arrivals are cut into quarters (by count) and, at each arrival, the requests
in the system and those still waiting are counted. The growth from the second quarter to the fourth, divided by the
arrivals between the quarters' middles (half of all), is the share of the offered load that is not served. The run is
SATURATED when that share is above 2 % and the server rested for less than 1 % of the second half of the arrivals.
Both are needed: a queue near saturation wanders, but a server that rests has capacity left.

While the system fills up from empty the count grows at any load, so it is judged only where filling ends within the
first quarter: when the first eighth of the requests, which met the lightest load, took (90th percentile) no longer
than a quarter of the window. Otherwise only the requests still waiting to start are judged. Fewer than 100
requests are not judged at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Floats, Ints

LEAST_REQUESTS = 100
UNSERVED_SHARE = 0.02
IDLE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """`basis`: what was judged: "in system", "waiting" or "too few requests". Shares of 1."""

    saturated: bool
    unserved_share: float
    idle_share: float
    basis: str


def judge(arrival_s: Floats, done_s: Floats, in_system: Ints, waiting: Ints, idle_late_s: float) -> Load:
    """Apply the rule above.

    arrival_s, done_s float64[N] of the served requests; in_system and waiting int64[4]: sums over the arrivals of
    each quarter; idle_late_s: rest in the second half of the arrivals.
    """
    count = len(arrival_s)
    if count < LEAST_REQUESTS or arrival_s[-1] <= arrival_s[0]:
        return Load(False, 0.0, 0.0, "too few requests")
    early = slice(0, count // 8)
    residence_s = float(np.percentile(done_s[early] - arrival_s[early], 90))
    settled = residence_s <= 0.25 * (arrival_s[-1] - arrival_s[0])
    sums = in_system if settled else waiting
    quarter = _quarter_sizes(count)
    growth = sums[3] / quarter[3] - sums[1] / quarter[1]
    unserved = float(growth / (0.5 * count))
    late_s = float(arrival_s[-1] - arrival_s[count // 2])
    idle = idle_late_s / late_s if late_s > 0 else 0.0
    saturated = unserved > UNSERVED_SHARE and idle < IDLE_SHARE
    return Load(bool(saturated), unserved, idle, "in system" if settled else "waiting")


def quarter_of(position: int, count: int) -> int:
    """Which quarter the `position`-th of `count` served arrivals belongs to (the kernel computes the same)."""
    return 4 * position // count


def _quarter_sizes(count: int) -> Ints:
    return np.bincount(4 * np.arange(count, dtype=np.int64) // count, minlength=4).astype(np.int64)


def merge_loads(loads: Sequence[Load]) -> Load:
    """The pool is saturated when one of its replicas is; the shares shown are the worst replica's."""
    return max(loads, key=lambda load: (load.saturated, load.unserved_share))
