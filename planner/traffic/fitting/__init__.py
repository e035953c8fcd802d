"""A synthetic model fitted to a traffic, and how well it holds on the half that it has not seen."""

from planner.traffic.fitting.report import Fit, FitReport, fit, judged
from planner.traffic.fitting.trying import CRITERION, FIT_PARTS, SESSION_KINDS, Candidate

__all__ = ["CRITERION", "FIT_PARTS", "SESSION_KINDS", "Candidate", "Fit", "FitReport", "fit", "judged"]
