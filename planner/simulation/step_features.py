"""What recorded steps contained, as the numbers that their durations depend on (calibration/steptime/shapes.py)."""

from __future__ import annotations

import numpy as np

from calibration.steptime.shapes import StepFeatures
from planner.simulation.arrays import Floats, Ints
from planner.simulation.outcome import StepRecord


def features_of_record(record: StepRecord, prompt_tokens: Ints) -> tuple[Ints, StepFeatures]:
    """Numbers int64[K] of the schedules with rows, and their features. `prompt_tokens` int64[N] by request."""
    rows = np.diff(record.offsets)
    steps = np.flatnonzero(rows > 0)
    starts = record.offsets[steps]
    tokens, cached = record.tokens.astype(np.float64), record.cached.astype(np.float64)
    decodes = np.asarray(record.decode, dtype=np.bool_)
    decode, chunk = decodes.astype(np.float64), (~decodes).astype(np.float64)
    completes = chunk * (record.cached + record.tokens >= prompt_tokens[record.request])

    def total(values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, starts), dtype=np.float64)

    def largest(values: Floats) -> Floats:
        return np.asarray(np.maximum.reduceat(values, starts), dtype=np.float64)

    if not len(steps):
        none = np.zeros(0)
        return steps, StepFeatures(none, none, none, none, none, none, none)
    cmax, pairs = largest(decode * cached), total(chunk * tokens * (cached + (tokens + 1.0) / 2.0))
    reach = np.maximum(cmax, largest(chunk * (cached + tokens)))
    features = StepFeatures(
        n=total(tokens),
        b=total(decode),
        S=total(decode + completes),
        C=total(decode * cached),
        cmax=cmax,
        P=pairs,
        kvm=np.where(pairs > 0.0, reach, 0.0),
    )
    return steps, features
