"""Which requests of a plan's traffic are replayed: one replica's, from its busiest stretch, enough for the claims.

A replay costs the device real time, so it takes a window. The window of `count` consecutive requests with the most
offered tokens per second is where a plan is most likely to be wrong; every percentile that is claimed needs its
requests (p99 of 71 requests is the maximum).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.search.requests import Requests

LEAST_REQUESTS = 50


def busiest(requests: Requests, count: int) -> tuple[Requests, int]:
    """The window and its first position. All requests if there are no more than `count` (>= 2).

    Arrivals are moved so that the window begins at 0: it is replayed on an idle device.
    """
    if count < 2:
        raise ValueError(f"a window needs at least 2 requests, not {count}")
    if requests.count <= count:
        return requests, 0
    arrival = requests.arrival_s
    tokens = np.concatenate([[0], np.cumsum(requests.prompt_tokens + requests.output_tokens)])
    offered = tokens[count:] - tokens[:-count]
    took = np.maximum(arrival[count - 1 :] - arrival[: len(arrival) - count + 1], 1e-9)
    first = int(np.argmax(offered / took))
    window = requests.take(slice(first, first + count))
    return replace(window, arrival_s=window.arrival_s - arrival[first]), first
