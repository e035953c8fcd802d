"""Gaps between tokens told apart by group of requests.

A simulation counts all gaps in one histogram, which is enough unless classes have limits on ITL of their own. Then its
steps are recorded, and every request's tokens are read off them: a row emits a token where it brings a request's
computed tokens to a number they have not had before, from the end of the prompt on (after a preemption the same
numbers are computed once more and emit nothing, until the last). The first token's time is the outcome's, because in
separate pools it is not that of the decode pool's first row. Bins as simulation/gaps.py; all groups together are the
run's own histogram, count by count (a test).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.simulation.gaps import FIRST_BIN, GAP_BINS, MANTISSA_SHIFT
from planner.simulation.outcome import Outcome, StepRecord

Ints = NDArray[np.int64]

#: Output tokens of a traffic whose steps are recorded: each takes some 50 bytes.
MAX_RECORDED_TOKENS: Final = 5_000_000


def gaps_by_group(outcome: Outcome, records: Sequence[StepRecord], group: Ints, groups: int) -> Ints:
    """int64[groups, GAP_BINS] from the records of all replicas that emit tokens to clients (of two pools the decode
    pool's), whose requests are positions in `group` int64[N]."""
    counts = np.zeros((groups, GAP_BINS), dtype=np.int64)
    parts = [_emissions(record, outcome.prompt_tokens) for record in records]
    request = np.concatenate([part[0] for part in parts])
    end_s = np.concatenate([part[1] for part in parts])
    first_s = outcome.first_token_s
    later = end_s > first_s[request]
    served = np.flatnonzero(outcome.served)
    request = np.concatenate([served, request[later]])
    end_s = np.concatenate([first_s[served], end_s[later]])
    order = np.lexsort((end_s, request))
    request, end_s = request[order], end_s[order]
    same = request[1:] == request[:-1]
    gap_s = np.ascontiguousarray((end_s[1:] - end_s[:-1])[same])
    bins = np.clip((gap_s.view(np.int64) >> MANTISSA_SHIFT) - FIRST_BIN, 0, GAP_BINS - 1)
    np.add.at(counts, (group[request[1:][same]], bins), 1)
    return counts


def _emissions(record: StepRecord, prompt_tokens: Ints) -> tuple[Ints, NDArray[np.float64]]:
    """Of each row that emits a token its request and the end of its step."""
    steps = np.repeat(np.arange(len(record.end_s)), np.diff(record.offsets))
    order = np.argsort(record.request, kind="stable")
    request = record.request[order]
    reached = (record.cached + record.tokens)[order]
    # The largest number reached so far by the same request: requests follow each other in blocks of their own.
    base = request * (int(reached.max(initial=0)) + 1)
    most = np.maximum.accumulate(base + reached) - base
    before = np.concatenate(([0], most[:-1]))
    before[np.concatenate(([True], request[1:] != request[:-1]))[: len(before)]] = 0
    emits = (reached >= prompt_tokens[request]) & (reached > before)
    return request[emits], record.end_s[steps[order][emits]]
