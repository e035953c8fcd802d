"""The calibration's step-time function, compiled: the one line that ties the kernel to a model's form."""

from __future__ import annotations

import numba

from calibration.steptime.scalar import step_seconds as _step_seconds

step_seconds = numba.njit(nogil=True)(_step_seconds)
