"""The calibration's functions, compiled: the two lines that tie the kernel to the forms of its models."""

from __future__ import annotations

from calibration.steptime.scalar import step_seconds as _step_seconds
from calibration.transfer import transfer_parts as _transfer_parts
from planner.simulation.kernel.compiled import inlined

# the references price steps and transfers with them too
step_seconds = inlined(_step_seconds, from_python=True)
transfer_parts = inlined(_transfer_parts, from_python=True)
