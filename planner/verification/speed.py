"""Was the device as fast while it was replayed as when it was calibrated?

A step bias of 4 % is 10 to 18 % of TTFT near saturation, and a shared machine is 4 % faster or slower from one minute
to another. So that a plan is not blamed for that, nor a device for the plan, a few of the calibration's own steps
(those that a drift check chooses) are timed before each replay and after the last. How much longer they took than when
calibrated, with its interval, stands in the report, beside what would have been predicted at that speed. The verdict
rests on neither: nothing is rescaled. Seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from calibration.engine.interface import Runner
from calibration.experiment.drift import choose_sentinels, moved
from calibration.experiment.running import lead_in_of
from calibration.steptime import StepSample

REPEATS: Final = 3  # of each step at each look


@dataclass(frozen=True, slots=True)
class Speed:
    """Of `steps` steps of the calibration, `repeats` times each: `change` = now / then - 1 of the time they take, with
    an interval that holds 19 of 20."""

    change: float
    low: float
    high: float
    steps: int
    repeats: int

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out that nothing has changed."""
        return not self.low <= 0.0 <= self.high

    @property
    def factor(self) -> float:
        """How many times as long steps take."""
        return 1.0 + self.change

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class SpeedWatch:
    """`then`: the steps, as they were calibrated; none: nothing is timed and nothing known."""

    runner: Runner
    then: Sequence[StepSample]
    seed: int
    _now_s: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, runner: Runner, samples: Sequence[StepSample], seed: int) -> SpeedWatch:
        try:
            return cls(runner, choose_sentinels(samples), seed)
        except ValueError:  # too few of them were repeated
            return cls(runner, (), seed)

    def look(self) -> None:
        """Times each step REPEATS times, in fresh orders. Raises what the runner raises."""
        self._now_s = self._now_s or [[] for _ in self.then]
        for _ in range(REPEATS):
            rng = np.random.default_rng([self.seed, sum(map(len, self._now_s))])
            for index in rng.permutation(len(self.then)).tolist():
                shape = self.then[index].shape
                chunks = [(chunk.query_tokens, chunk.cached_tokens, chunk.samples) for chunk in shape.chunks]
                seed = int(rng.integers(1 << 62))
                timing = self.runner.measure(shape.decode_contexts, chunks, seed, lead_in=lead_in_of(shape))
                self._now_s[index].append(timing.seconds)

    def speed(self) -> Speed | None:
        """Of all looks; None where there was none."""
        if not self._now_s:
            return None
        now = [replace(then, seconds=tuple(s)) for then, s in zip(self.then, self._now_s, strict=True)]
        found = moved(self.then, now, self.seed)
        change, low, high = np.expm1([found.log_ratio, found.low, found.high]).tolist()
        return Speed(change, low, high, len(now), len(self._now_s[0]))
