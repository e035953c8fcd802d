"""Which of a plan's calibrations its configuration rests on, by pool: a plan on two kinds of hardware has two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibration.models import Calibration
from calibration.services import step_time_model
from calibration.steptime import StepTimeModel
from planner.knob_columns import kinds_of
from planner.models import Plan
from planner.search.confidence import pick_refits
from planner.verification.pool_steps import PoolSteps


def calibrations_of(plan: Plan) -> list[Calibration]:
    """One for each kind of hardware, in the order in which the plan's answer numbers them."""
    return [plan.calibration, *([plan.second_calibration] if plan.second_calibration else [])]


def chosen_kinds(plan: Plan) -> tuple[int, int]:
    """By number, of the prefill and the decode side of what the plan recommends; the first where it does not."""
    if plan.second_calibration_id is None:  # the answer need not be read
        return 0, 0
    choice = ((plan.result or {}).get("verdict") or {}).get("choice")
    return kinds_of(choice) if choice else (0, 0)


def chosen_calibrations(plan: Plan) -> tuple[Calibration, Calibration]:
    """Of the prefill and the decode side; the same twice where both are on one kind of hardware."""
    rows = calibrations_of(plan)
    prefill, decode = chosen_kinds(plan)
    return rows[prefill], rows[decode]


@dataclass(frozen=True, slots=True)
class PoolModels:
    """Of the prefill and the decode side; the same twice where both are on one kind of hardware."""

    prefill: StepTimeModel
    decode: StepTimeModel

    @classmethod
    def of(cls, plan: Plan) -> PoolModels:
        prefill, decode = chosen_calibrations(plan)
        model = step_time_model(decode)
        return cls(model if prefill == decode else step_time_model(prefill), model)

    @property
    def steps(self) -> PoolSteps:
        return PoolSteps(self.prefill.arrays(), self.decode.arrays())

    def refitted(self, count: int, seed: int) -> Sequence[PoolSteps]:
        """`count` refits, fewer where there are fewer; of two models drawn apart, and then in pairs."""
        decode = pick_refits(self.decode, count, seed)
        if self.prefill is self.decode:
            return [PoolSteps.alike(self.decode.arrays(refit=i)) for i in decode]
        prefill = pick_refits(self.prefill, count, seed + 1)
        pairs = zip(prefill, decode, strict=False)
        return [PoolSteps(self.prefill.arrays(refit=i), self.decode.arrays(refit=k)) for i, k in pairs]
