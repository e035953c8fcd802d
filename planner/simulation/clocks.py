"""The two clocks of a simulation: seconds from the step-time model, or the number of the schedule."""

from __future__ import annotations

from calibration.steptime.scalar import StepTimeArrays

CLOCKS = ("seconds", "steps")


def check_clock(clock: str, step_time: StepTimeArrays | None) -> None:
    """ValueError for an unknown clock, or for seconds without a step time."""
    if clock not in CLOCKS:
        raise ValueError(f"clock must be one of {', '.join(CLOCKS)}, not {clock!r}")
    if clock == "seconds" and step_time is None:
        raise ValueError("the seconds clock needs a step time")
