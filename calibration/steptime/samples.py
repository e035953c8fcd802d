"""One measured shape: its repeats in seconds, what it was measured for, and how tight its median is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.shapes import Kind, StepShape

#: What a sample is for: fitted; scored and never fitted; repeated to notice drift; or kept without a use
#: ("outside": an imported step that needs more KV than its server has).
FITTED_ROLES = ("fit", "retry")
HELDOUT_ROLES = ("heldout", "retry_heldout")
ROLES = (*FITTED_ROLES, *HELDOUT_ROLES, "sentinel", "outside")
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step shape with the seconds of its repeats (device time; `host_gap_s` is host time beyond it).

    `contended_share`: share of the repeats during which something else used the processor, 0..1.
    """

    shape: StepShape
    seconds: tuple[float, ...]
    role: str = "fit"
    contended_share: float = 0.0
    host_gap_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.seconds or not all(math.isfinite(s) and s > 0 for s in self.seconds):
            raise ValueError("a sample needs at least one repeat, each finite and above 0 s")

    @property
    def kind(self) -> Kind:
        return self.shape.kind

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    @property
    def ci_half_width(self) -> float:
        """Half the width of the bootstrap 95 % interval of the median, relative to the median.

        One repeat says nothing about spread: infinite.
        """
        if len(self.seconds) < 2:
            return math.inf
        medians = np.median(np.asarray(self.seconds)[_resamples(len(self.seconds))], axis=1)
        low, high = np.percentile(medians, [2.5, 97.5])
        return float((high - low) / 2 / self.median_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "shape": self.shape.to_dict(),
            "seconds": list(self.seconds),
            "role": self.role,
            "contended_share": self.contended_share,
            "host_gap_s": self.host_gap_s,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepSample:
        return cls(
            StepShape.from_dict(data["shape"]),
            tuple(float(s) for s in data["seconds"]),
            str(data["role"]),
            float(data["contended_share"]),
            float(data["host_gap_s"]),
        )


@lru_cache(maxsize=64)
def _resamples(count: int) -> NDArray[np.int64]:
    """Indices of the bootstrap draws for `count` repeats: the same each time, so that a rerun agrees."""
    return np.random.default_rng(count).integers(0, count, size=(_RESAMPLES, count))
