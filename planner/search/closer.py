"""The shown configuration looked at closely: policies, why, what breaks first, sensitivities, or what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from planner.search.breaking import Breaking
from planner.search.policies import PolicyResult
from planner.search.relief import Relief
from planner.search.sensitivity import Sensitivity
from planner.search.why import Why


@dataclass(frozen=True, slots=True)
class CloserLook:
    """What there is of it: an answer that was stopped, or is saturated, has less. `other_why`: of the best of the
    other deployment; `relief`: only where nothing meets the objectives."""

    policies: tuple[PolicyResult, ...] = ()
    why: Why | None = None
    other_why: Why | None = None
    breaking: Breaking | None = None
    sensitivities: tuple[Sensitivity, ...] = ()
    relief: Relief | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "policies": [policy.to_dict() for policy in self.policies],
            "why": self.why.to_dict() if self.why else None,
            "other_why": self.other_why.to_dict() if self.other_why else None,
            "breaking": self.breaking.to_dict() if self.breaking else None,
            "sensitivities": [each.to_dict() for each in self.sensitivities],
            "relief": self.relief.to_dict() if self.relief else None,
        }


NOTHING_CLOSER: Final = CloserLook()
