"""Traffic made up from a model: arrivals x lengths x sessions. The built-in presets are in synthesis.py."""

from planner.traffic.generating.arrivals import ARRIVALS
from planner.traffic.generating.lengths import LENGTHS
from planner.traffic.generating.model import PARTS, SyntheticModel, generate, parse_model
from planner.traffic.generating.sessions import Sessions

__all__ = ["ARRIVALS", "LENGTHS", "PARTS", "Sessions", "SyntheticModel", "generate", "parse_model"]
