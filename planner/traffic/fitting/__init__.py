"""A synthetic model fitted to a traffic, and how well it holds on the half that it has not seen."""

from planner.traffic.fitting.report import CRITERION, Candidate, Fit, FitReport, fit, judged

__all__ = ["CRITERION", "Candidate", "Fit", "FitReport", "fit", "judged"]
