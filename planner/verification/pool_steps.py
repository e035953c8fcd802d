"""Step times of the replicas that are held against reality: of two pools on two kinds of hardware each pool's own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import StepTimeArrays, step_seconds
from planner.search.scaling import scaled
from planner.verification.loop import Replayed


class PoolSteps(NamedTuple):
    """Of prefill and of decode; replicas alike have the same twice."""

    prefill: StepTimeArrays
    decode: StepTimeArrays

    @classmethod
    def alike(cls, steps: StepTimeArrays) -> PoolSteps:
        return cls(steps, steps)

    def scaled(self, factor: float) -> PoolSteps:
        """Every step takes `factor` times as long."""
        return PoolSteps(scaled(self.prefill, factor), scaled(self.decode, factor))

    def priced_s(self, replayed: Replayed) -> NDArray[np.float64]:
        """What each step that ran was predicted to take, float64[K], by the pool that ran it."""
        prefilled = replayed.prefill
        laws = [self.decode] * len(replayed.features)
        if prefilled is not None:
            laws = [self.prefill if own else self.decode for own in prefilled.tolist()]
        rows = zip(laws, replayed.features.tolist(), strict=True)
        return np.array([step_seconds(law, *row)[0] for law, row in rows], dtype=np.float64)
