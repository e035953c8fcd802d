"""Objectives of a stored result (planner/search/result.py) as tables, figures and files show them.

Latencies are seconds there and ms here. Of a joint objective (goodput) the value is a share of its limits, shown in %.
Results stored before there were classes have neither `key` nor `request_class`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.search import GOODPUT
from planner.search import label_of as words

Stored = Mapping[str, Any]
OF_LIMITS = "% of the limits"


def is_joint(o: Stored) -> bool:
    return bool(o["metric"] == GOODPUT)


def key_of(o: Stored) -> str:
    return str(o.get("key") or f"{o['metric']}:p{o['percentile']:g}")


def label_of(o: Stored) -> str:
    """`TTFT p95`, `chat: goodput p99`."""
    return words(o["metric"], o["percentile"], o.get("request_class"))


def unit_of(o: Stored) -> str:
    return OF_LIMITS if is_joint(o) else "ms"


def column_of(o: Stored) -> str:
    """`TTFT p95 [ms]`."""
    return f"{label_of(o)} [{unit_of(o)}]"


def number_of(o: Stored, value: float) -> float:
    """A stored value in `unit_of`."""
    return value * (100.0 if is_joint(o) else 1e3)


def cell_of(o: Stored, value: float | None) -> str:
    return "–" if value is None else f"{number_of(o, value):,.4g}"


def text_of(o: Stored, value: float) -> str:
    """With its unit."""
    return f"{cell_of(o, value)} {unit_of(o)}"


def limits_text(o: Stored) -> str:
    """`TTFT ≤ 1,000 ms, TPOT ≤ 50 ms` of a joint objective, else nothing."""
    limits: Mapping[str, float] = o.get("limits") or {}
    return ", ".join(f"{metric.upper()} ≤ {limit * 1e3:,.4g} ms" for metric, limit in limits.items())


def limit_of(objectives: Sequence[Stored], key: str) -> float | None:
    """The limit of this percentile [s], None where it was not asked for."""
    return next((o["limit"] for o in objectives if key_of(o) == key), None)
