"""Is the offered load more than the replica can serve?

Above capacity the queue of requests that wait for a seat or for KV blocks grows for as long as requests arrive, at
the rate (offered - served); below it, it settles. So the arrivals are cut into quarters (by count) and the queue is
measured at each arrival. Its growth from the second quarter's mean to the fourth's, over the arrivals between
the quarters' middles (half of all), is the share of the offered load that is not served. A run is SATURATED when
that share is above 2 % and the server rested for less than 1 % of the second half of the arrivals. Both are needed:
a queue near saturation wanders, and a server that rests has capacity left.

On M/D/1 and batch servers, 60 seeds each: 2,000 requests at 0.9 of capacity never flagged, at 1.1 in 95-98 %, at
1.2 always. With fewer than 100 requests nothing is judged. A load that fills the seats only after a long time can end
before it shows: `settled` says whether the arrivals lasted four times the (90th percentile) time in the system of
the first eighth of the requests.

What is STABLE need not have anything left. A queue that came with an early rush and hardly emptied again does not grow,
and yet the server gave all it had: the run is near capacity (`Load.near_capacity`) when it rested for less than 1 % of
the second half and the median wait for a first step then was more than twice the median time from there to the first
token. (Where no queue stands, a request waits for the step that runs, which takes no longer than its own prompt's.) On
the same servers, 20 seeds each, none at 0.3 and 0.7 of capacity; some at 0.9, where the queue of a batch server stands
most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.simulation.arrays import Floats, Ints

Quarter = TypeVar("Quarter", int, Ints)

LEAST_REQUESTS = 100
UNSERVED_SHARE = 0.02
IDLE_SHARE = 0.01
SETTLING_TIMES = 4.0
STANDING = 2.0
STABLE, SATURATED, NOT_JUDGED = "STABLE", "SATURATED", "not judged"


@dataclass(frozen=True, slots=True)
class Load:
    """`unserved_share` of the offered requests, `idle_share` of the second half of the arrivals; shares of 1. `full`:
    most requests of that half stood in a queue.

    Not `judged`: too few requests, or a closed loop, which never offers more than is served.
    """

    saturated: bool
    unserved_share: float
    idle_share: float
    settled: bool
    judged: bool = True
    full: bool = False

    @property
    def verdict(self) -> str:
        if not self.judged:
            return NOT_JUDGED
        return SATURATED if self.saturated else STABLE

    @property
    def near_capacity(self) -> bool:
        """STABLE, with nothing left."""
        return self.verdict == STABLE and self.full and self.idle_share < IDLE_SHARE


#: Of a run that was not judged.
NO_LOAD = Load(saturated=False, unserved_share=0.0, idle_share=0.0, settled=False, judged=False)


def judge(
    arrival_s: Floats,
    done_s: Floats,
    waiting: Ints,
    idle_late_s: float,
    scheduled_s: Floats | None = None,
    first_token_s: Floats | None = None,
) -> Load:
    """Apply the rule above.

    arrival_s, done_s float64[N] of the served requests; waiting int64[4]: the queue's length (the arrival
    included) summed over the arrivals of each quarter; idle_late_s: rest in the second half of the arrivals.
    scheduled_s, first_token_s float64[N]: begin of the first step, and the first token; None: no queue is looked at.
    """
    count = len(arrival_s)
    window_s = float(arrival_s[-1] - arrival_s[0]) if count else 0.0
    if count < LEAST_REQUESTS or window_s <= 0.0:
        return NO_LOAD
    early = slice(0, count // 8)
    residence_s = float(np.percentile(done_s[early] - arrival_s[early], 90))
    quarters = np.bincount(quarter_of(np.arange(count), count), minlength=4)
    growth = waiting[3] / quarters[3] - waiting[1] / quarters[1]
    unserved = float(growth / (0.5 * count))
    late = slice(count // 2, None)
    late_s = float(arrival_s[-1] - arrival_s[count // 2])
    full = False
    if scheduled_s is not None and first_token_s is not None:
        wait_s = np.median(scheduled_s[late] - arrival_s[late])
        full = bool(wait_s > STANDING * np.median(first_token_s[late] - scheduled_s[late]))
    idle = idle_late_s / late_s if late_s > 0.0 else 0.0
    return Load(
        saturated=unserved > UNSERVED_SHARE and idle < IDLE_SHARE,
        unserved_share=max(0.0, unserved),
        idle_share=idle,
        settled=SETTLING_TIMES * residence_s <= window_s,
        full=full,
    )


def quarter_of(position: Quarter, count: int) -> Quarter:
    """Which quarter the `position`-th of `count` arrivals belongs to (the kernel computes the same)."""
    return 4 * position // count


def merge_loads(loads: Sequence[Load]) -> Load:
    """A pool is saturated when one of its replicas is; the shares shown are the worst replica's."""
    return max(
        loads,
        key=lambda load: (load.saturated, load.judged, load.near_capacity, load.unserved_share),
    )
