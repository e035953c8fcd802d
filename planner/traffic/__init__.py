"""Traffic: what must be served. Files and presets become one set of arrays; nothing here knows of Django.

read.py reads a file (formats/: those that are more than a request a line; benchmarks/: results that are no
traces) · synthesis.py makes traffic up · summary.py and curves.py describe it · storage.py
keeps it · errors.py says what is wrong with it.
"""

from planner.traffic.benchmarks import BenchmarkResult
from planner.traffic.errors import TooLarge, TrafficError, TrafficFileError
from planner.traffic.grids import spread_grid
from planner.traffic.layout import FORMATS
from planner.traffic.look import Preview, preview
from planner.traffic.model import Finding, PrefixHashes, Traffic
from planner.traffic.options import ImportOptions
from planner.traffic.read import load_traffic, read_traffic
from planner.traffic.storage import from_npz_bytes, to_npz_bytes
from planner.traffic.stream import LIMITS, Limits
from planner.traffic.summary import statistics
from planner.traffic.synthesis import PRESETS, Preset, synthesise

__all__ = [
    "FORMATS",
    "LIMITS",
    "PRESETS",
    "BenchmarkResult",
    "Finding",
    "ImportOptions",
    "Limits",
    "PrefixHashes",
    "Preset",
    "Preview",
    "TooLarge",
    "Traffic",
    "TrafficError",
    "TrafficFileError",
    "from_npz_bytes",
    "load_traffic",
    "preview",
    "read_traffic",
    "spread_grid",
    "statistics",
    "synthesise",
    "to_npz_bytes",
]
