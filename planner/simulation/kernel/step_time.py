"""The calibration's functions and models, for compiled code: what ties the kernel to the forms of its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibration.steptime.scalar import StepTimeArrays
from calibration.steptime.scalar import step_seconds as _step_seconds
from calibration.transfer import TransferArrays
from calibration.transfer import transfer_parts as _transfer_parts
from planner.simulation.arrays import Ints
from planner.simulation.kernel.by_address import Layout, row_of
from planner.simulation.kernel.compiled import inlined

MODEL = Layout(
    StepTimeArrays,
    {name: (np.float64, 2 if name == "facets" else 1) for name in StepTimeArrays._fields},
)
TABLE = Layout(TransferArrays, dict.fromkeys(TransferArrays._fields, np.float64))

model_at: Callable[[Ints, int], StepTimeArrays] = row_of(MODEL)
table_at: Callable[[Ints, int], TransferArrays] = row_of(TABLE)

# the references price steps and transfers with them too
step_seconds = inlined(_step_seconds, from_python=True)
transfer_parts = inlined(_transfer_parts, from_python=True)


def as_floats(models: Sequence[StepTimeArrays]) -> tuple[StepTimeArrays, ...]:
    """The same numbers as arrays of the kind that `MODEL` describes."""
    return tuple(StepTimeArrays(*(np.ascontiguousarray(field, np.float64) for field in m)) for m in models)
