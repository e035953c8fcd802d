"""A synthetic model fitted to a traffic, and how well it holds on the half that it has not seen."""

from planner.traffic.fitting.report import Fit, FitReport, fit, judged
from planner.traffic.fitting.trying import (
    CRITERION,
    FIT_PARTS,
    NOT_IN_SESSIONS,
    SESSION_KINDS,
    Candidate,
    not_in_sessions,
)

__all__ = [
    "CRITERION", "FIT_PARTS", "NOT_IN_SESSIONS", "SESSION_KINDS", "Candidate", "Fit", "FitReport", "fit", "judged",
    "not_in_sessions",
]  # fmt: skip
