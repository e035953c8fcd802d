"""Pictures of traffic and of plans as plotly figures in JSON, in the form of calibration/charts.py: plotly's data
and layout, a table with the same numbers, a note, and what to say when there is nothing to draw. Only this package
and its namesake there know plotly. Every curve differs from its neighbours in dash or shape as well as in colour.
"""

from planner.charts.plan import PLAN_FIGURES, drawable, plan_figure
from planner.charts.traffic import TRAFFIC_FIGURES, traffic_figure
from planner.charts.verification import (
    VERIFICATION_FIGURES,
    verification_figure,
    verification_figures,
)

VERSION = 2  # of the drawing: browsers keep figures under it

__all__ = [
    "PLAN_FIGURES",
    "TRAFFIC_FIGURES",
    "VERIFICATION_FIGURES",
    "VERSION",
    "drawable",
    "plan_figure",
    "traffic_figure",
    "verification_figure",
    "verification_figures",
]
