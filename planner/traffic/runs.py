"""One clock for a file, or several runs one after the other.

Files joined from several recordings have times that start again. Read as one clock, the runs overlap; with
time_origin="each_run" each follows the one before, at the mean gap of all.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.traffic.errors import LISTED
from planner.traffic.model import Finding, Floats

_FALL = 0.5
"""A new run: times fall back by more than this share of what the run has lasted."""


def placed(
    arrival_s: Floats, line: NDArray[np.int32], origin: Literal["one", "each_run"]
) -> tuple[Floats, list[Finding]]:
    """Arrivals in the file's order, float64[N], with the runs as `origin` says, and what to tell of them."""
    starts = _starts(arrival_s)
    if len(starts) < 2:
        return arrival_s, []
    lines = tuple(line[starts[1:]][:LISTED].tolist())
    if origin == "one":
        message = (
            f"The times start again {len(starts) - 1:,} times, as where recordings were joined: read by one clock they "
            "overlap. To put one after the other, say so (time_origin)."
        )
        return arrival_s, [Finding("times_start_again", message, len(starts) - 1, lines)]
    ends = np.append(starts[1:], len(arrival_s))
    spans = [float(arrival_s[a:b].max() - arrival_s[a:b].min()) for a, b in zip(starts, ends, strict=True)]
    gaps = max(1, len(arrival_s) - len(starts))
    pause_s = sum(spans) / gaps
    result = arrival_s.copy()
    at_s = 0.0
    for a, b, span_s in zip(starts, ends, spans, strict=True):
        result[a:b] += at_s - arrival_s[a:b].min()
        at_s += span_s + pause_s
    message = f"{len(starts):,} runs were put one after the other, {pause_s:.6g} s apart (the mean gap)."
    return result, [Finding("runs_joined", message, len(starts), lines)]


def _starts(arrival_s: Floats) -> NDArray[np.intp]:
    """Where runs begin, the first at 0."""
    starts = [0]
    for index in (np.flatnonzero(arrival_s[1:] < arrival_s[:-1]) + 1).tolist():
        before = arrival_s[starts[-1] : index]
        lasted_s = float(before[-1] - before[0])
        if lasted_s > 0 and before[-1] - arrival_s[index] > _FALL * lasted_s:
            starts.append(index)
            if len(starts) > 1_000:  # not runs: times without order
                return np.zeros(1, np.intp)
    return np.array(starts, np.intp)
