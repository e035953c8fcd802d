"""Traffic: what must be served. Files and presets become one set of arrays; nothing here knows of Django.

read.py reads a file · synthesis.py makes traffic up · summary.py and curves.py describe it · storage.py
keeps it · errors.py says what is wrong with it.
"""

from planner.traffic.errors import TooLarge, TrafficError, TrafficFileError
from planner.traffic.model import Finding, PrefixHashes, Traffic
from planner.traffic.storage import from_npz_bytes, to_npz_bytes
from planner.traffic.summary import statistics
from planner.traffic.synthesis import PRESETS, Preset, synthesise

__all__ = [
    "PRESETS",
    "Finding",
    "PrefixHashes",
    "Preset",
    "TooLarge",
    "Traffic",
    "TrafficError",
    "TrafficFileError",
    "from_npz_bytes",
    "statistics",
    "synthesise",
    "to_npz_bytes",
]
