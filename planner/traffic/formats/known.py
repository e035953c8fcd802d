"""The formats of this package, known by the keys of their first JSON object or by a CSV's column names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

PERCENTILE_KEYS = ("percentile", "quantile", "pct")


def json_format(first: Mapping[str, Any]) -> str | None:
    """The format of JSON lines that begin with this object; None for one request a line, or unknown."""
    schema = first.get("schema")
    if isinstance(schema, str) and schema.startswith("dynamo.agentic"):
        return "mooncake_agentic"
    if (isinstance(schema, str) and schema.startswith("dynamo.request")) or "event_type" in first:
        return "dynamo"
    if "input_prompt_length" in first and "num_turns" in first:
        return "applied_compute"
    if "dependencies" in first or "wait_for" in first:
        return "mooncake_agentic"
    if "delay" in first:
        return "mooncake_sessions"
    return None


def table_format(keys: Collection[str]) -> str | None:
    """The format of a CSV with these (normalised) column names, where it is a distribution."""
    if {"prompt_tokens_le", "output_tokens_le", "count"} <= set(keys):
        return "histogram"
    if any(key in keys for key in PERCENTILE_KEYS):
        return "percentiles"
    wide = [key for key in keys if key.startswith("p") and key[1:].replace("_", "").isdecimal()]
    return "percentiles" if len(wide) >= 2 and "ttft" not in keys else None
