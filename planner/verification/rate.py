"""How fast a replica can serve requests like these, and the same requests at a share of that rate.

What a replica holds is found by giving it everything at once: it never rests and its seats are as full as they can be,
so requests over the time it takes them is the most that it serves for long. (The last requests leave seats empty, so
few requests make it a little less: repeat them until that does not matter.) A verification at 80 % of it asks the same
of every device, whatever rate the traffic was recorded at. Requests per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from planner.search.requests import Requests
from planner.simulation.outcome import Outcome

ENOUGH_REQUESTS: Final = 1_000


def held_per_s(requests: Requests, simulate: Callable[[Requests], Outcome]) -> float:
    """The most requests like these that are served in a second, by what `simulate` simulates. ValueError where none
    can be."""
    order = np.tile(np.arange(requests.count), -(-ENOUGH_REQUESTS // requests.count))
    outcome = simulate(requests.reordered(order, np.zeros(len(order))))
    served = len(order) - len(outcome.rejected)
    if not served or outcome.makespan_s <= 0.0:
        raise ValueError("none of these requests fits the replica")
    return served / outcome.makespan_s


def at_rate(requests: Requests, rate_per_s: float) -> Requests:
    """The same requests in the same rhythm, arriving at this mean rate. ValueError where there is no rhythm."""
    span_s = float(requests.arrival_s[-1] - requests.arrival_s[0])
    if requests.count < 2 or span_s <= 0.0:
        raise ValueError("requests that arrive all at once have no rate to change")
    factor = (requests.count - 1) / span_s / rate_per_s
    return replace(requests, arrival_s=(requests.arrival_s - requests.arrival_s[0]) * factor)
