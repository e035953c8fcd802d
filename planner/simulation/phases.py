"""Where a request's time to the first token went, in one vocabulary for one replica and for clusters.

  queue             arrival to the start of the first step that computes for it
  prefill           the steps that computed its prompt
  chunk wait        the time between those steps, in which it had none
  transfer          prefill end to KV cache ready on the decode side, its wait for room there and messages included
  first decode      pull only: KV cache ready to the end of the decode side's first step for it

They add up to the TTFT. Transfer and first decode are 0 where one replica did both phases.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.simulation.arrays import Floats
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.outcome import Outcome

TTFT_PARTS: Final = ("queue", "prefill", "chunk wait", "transfer", "first decode")


def ttft_parts_s(outcome: Outcome | ClusterOutcome) -> dict[str, Floats]:
    """By TTFT_PARTS, float64[N] seconds each, NaN for requests that were not served."""
    if isinstance(outcome, ClusterOutcome):
        requests, parts = outcome.requests, outcome.ttft_parts_s()
        queue, prefill = parts["queue"], parts["prefill"]
        transfer, first_decode = parts["transfer"], parts["first decode"]
    else:
        requests = outcome
        queue = requests.first_scheduled_s - requests.arrival_s
        prefill = requests.prefill_end_s - requests.first_scheduled_s
        transfer = first_decode = np.where(requests.served, 0.0, np.nan)
    wait = requests.prefill_wait_s
    return dict(zip(TTFT_PARTS, (queue, prefill - wait, wait, transfer, first_decode), strict=True))
