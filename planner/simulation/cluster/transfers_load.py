"""Are more KV caches offered than the links can move?

A saturated link shows in no replica's queue: the prefill side is done, the decode side has room and rests, and
requests pile up in between. So what moves KV caches is judged as one more server, by the rule of `saturation`: a
request comes to it when its prefill is over and is served when its KV cache is there; it rests while no transfer is
under way. Waiting for room on the decode side keeps nothing busy here, and shows in that side's queue instead. Where
chunks are pushed, the last one's transfer counts. Of one link shared by Poisson arrivals of 2,000 equal transfers, 60
seeds each: never flagged at 0.7 and 0.9 of its capacity, always at 1.1 and 1.2. Transfers that share a link are all
late together, so `unserved_share`, of requests, is larger than the share of bytes. Seconds.
"""

from __future__ import annotations

import numpy as np

from planner.simulation.arrays import Floats
from planner.simulation.saturation import Load, judge, quarter_of


def judge_transfers(prefilled_s: Floats, begun_s: Floats, ready_s: Floats) -> Load:
    """Of the requests handed over: float64[M] each, the end of the prefill, of the last transfer's begin, and end."""
    order = np.argsort(prefilled_s, kind="stable")
    come, ready = prefilled_s[order], ready_s[order]
    count = len(come)
    waiting = np.zeros(4, dtype=np.int64)
    number = np.arange(count)
    if count:
        between = number + 1 - np.searchsorted(np.sort(ready), come, side="left")
        np.add.at(waiting, quarter_of(number, count), between)
    rest_s = _rest(begun_s, ready_s, float(come[count // 2]), float(come[-1])) if count else 0.0
    return judge(come, ready, waiting, rest_s)


def _rest(begun_s: Floats, ready_s: Floats, from_s: float, to_s: float) -> float:
    """How much of from..to no transfer covers."""
    order = np.argsort(begun_s, kind="stable")
    begun = np.clip(begun_s[order], from_s, to_s)
    furthest = np.maximum.accumulate(np.clip(ready_s[order], from_s, to_s))
    before = np.concatenate([[from_s], furthest[:-1]])
    return float(np.maximum(begun - before, 0.0).sum() + to_s - furthest[-1])
