"""The calibration's step-time function, compiled: the one line that ties the kernel to a model's form."""

from __future__ import annotations

from calibration.steptime.scalar import step_seconds as _step_seconds
from planner.simulation.kernel.compiled import inlined

step_seconds = inlined(_step_seconds)
