"""Which module reads which format of this package."""

from __future__ import annotations

from collections.abc import Callable

from planner.traffic.columns import Columns
from planner.traffic.formats.agentic import read_agentic
from planner.traffic.formats.applied_compute import read_applied_compute
from planner.traffic.formats.dynamo import read_dynamo
from planner.traffic.formats.histogram import read_histogram
from planner.traffic.formats.percentiles import read_percentiles
from planner.traffic.formats.sessions import read_sessions
from planner.traffic.formats.special import Blocks, Special
from planner.traffic.layout import Layout
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems

Reader = Callable[[Blocks, Layout, Columns, Problems, ImportOptions], Special]

READERS: dict[str, Reader] = {
    "mooncake_sessions": read_sessions,
    "mooncake_agentic": read_agentic,
    "dynamo": read_dynamo,
    "applied_compute": read_applied_compute,
    "histogram": read_histogram,
    "percentiles": read_percentiles,
}
