"""Was the device as fast while it was replayed as when it was calibrated?

A step bias of 4 % is 10 to 18 % of TTFT near saturation, and a shared machine is 4 % faster or slower from one minute
to another. So that a plan is not blamed for that, nor a device for the plan, a few of the calibration's own steps
(those that a drift check chooses) are timed before each replay, after every EVERY_STEPS of its steps, and after the
last. How much longer they took than when calibrated stands in the report, beside what would have been predicted at that
speed. The verdict rests on neither: nothing is rescaled.

What is told is a mean, because busy time is a sum: slow seconds and disturbed steps are part of it. Its interval is a
bootstrap over steps, over looks, which meet the same moments, and over the calibration's own repeats. Seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.engine.interface import Runner
from calibration.experiment.drift import choose_sentinels
from calibration.experiment.running import lead_in_of, run_step
from calibration.steptime import StepSample

Floats = NDArray[np.float64]

REPEATS: Final = 3  # of each step before and after
EVERY_STEPS: Final = 64  # of a replay each once: about a tenth of its time


RESAMPLES: Final = 1_000
LEVEL: Final = 0.95


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
    _steps: int = 0

    @classmethod
    def of(cls, runner: Runner, samples: Sequence[StepSample], seed: int) -> SpeedWatch:
        try:
            return cls(runner, choose_sentinels(samples), seed)
        except ValueError:  # too few of them were repeated
            return cls(runner, (), seed)

    def stepped(self) -> None:
        """A step of the replay has run. Raises what the runner raises."""
        self._steps += 1
        if self._steps % EVERY_STEPS == 0:
            self.look(1)

    def look(self, repeats: int = REPEATS) -> None:
        """Times each step so many times, in fresh orders. Raises what the runner raises."""
        self._now_s = self._now_s or [[] for _ in self.then]
        for _ in range(repeats):
            rng = np.random.default_rng([self.seed, sum(map(len, self._now_s))])
            for index in rng.permutation(len(self.then)).tolist():
                shape = self.then[index].shape
                timing = run_step(self.runner, shape, int(rng.integers(1 << 62)), lead_in_of(shape))
                self._now_s[index].append(timing.seconds)

    def speed(self) -> Speed | None:
        """Of all looks; None where there was none."""
        if not self._now_s:
            return None
        rng = np.random.default_rng(self.seed)
        logs = np.array([np.log(own) for own in self._now_s])  # [steps, repeats]
        steps, repeats = logs.shape
        then = np.array([_log_medians(sample, rng) for sample in self.then])  # [steps, RESAMPLES]
        picked = rng.integers(0, steps, (RESAMPLES, steps))
        looks = rng.integers(0, repeats, (RESAMPLES, repeats))
        drawn = [
            float((logs[p][:, look].mean(axis=1) - then[p, draw]).mean())
            for draw, (p, look) in enumerate(zip(picked, looks, strict=True))
        ]
        mean = float(logs.mean() - np.log([sample.median_s for sample in self.then]).mean())
        low, high = np.percentile(drawn, [50.0 * (1.0 - LEVEL), 50.0 * (1.0 + LEVEL)]).tolist()
        change, low, high = np.expm1([mean, min(low, mean), max(high, mean)]).tolist()
        return Speed(change, low, high, steps, repeats)


def _log_medians(sample: StepSample, rng: np.random.Generator) -> Floats:
    """float64[RESAMPLES], of resampled repeats."""
    logs = np.log(np.asarray(sample.seconds))
    return np.asarray(np.median(rng.choice(logs, (RESAMPLES, len(logs))), axis=1))
