"""Part of a run's requests: a class of them, or all but those of the warm-up."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from planner.simulation.arrays import Ints
from planner.simulation.outcome import Outcome

#: The fields of an Outcome that have one entry per request.
PER_REQUEST: Final = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "first_scheduled_s",
    "prefill_end_s",
    "prefill_wait_s",
    "first_token_s",
    "done_s",
    "max_gap_s",
    "preemptions",
    "hit_tokens",
    "rehit_tokens",
)


def take(outcome: Outcome, positions: Ints) -> Outcome:
    """The same run, telling only of the requests at `positions`, in that order.

    What is not told per request stays that of the whole run: the histogram of gaps, steps, times, KV blocks.
    """
    place = np.full(len(outcome.arrival_s), -1, dtype=np.int64)
    place[positions] = np.arange(len(positions))
    rejected = place[outcome.rejected]
    parts = {name: getattr(outcome, name)[positions] for name in PER_REQUEST}
    return replace(outcome, rejected=np.sort(rejected[rejected >= 0]), **parts)


def without_first(outcome: Outcome, count: int) -> Outcome:
    """The same run without the first `count` requests in all that is told per request."""
    if count == 0:
        return outcome
    return take(outcome, np.arange(count, len(outcome.arrival_s)))
