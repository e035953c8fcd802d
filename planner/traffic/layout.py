"""Which column means what: the result of recognition and the input of the readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "ms", "us", "ns", "min", "h", "d", "stamp"]
UNITS_PER_S: dict[str, int] = {
    "s": 1,
    "ms": 1_000,
    "us": 1_000_000,
    "ns": 1_000_000_000,
    "stamp": 1_000_000_000,
}
S_PER_UNIT: dict[str, int] = {"min": 60, "h": 3_600, "d": 86_400}
UNIT_NAMES = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "min": "minutes",
    "h": "hours",
    "d": "days",
}

FORMATS = {
    "azure": "Azure trace (TIMESTAMP, ContextTokens, GeneratedTokens)",
    "mooncake": "Mooncake trace (JSON lines: timestamp in ms, input_length, output_length, hash_ids)",
    "mooncake_sessions": "Mooncake trace with sessions (delay, session_id)",
    "mooncake_agentic": "agentic Mooncake trace (requests that wait for others)",
    "dynamo": "Dynamo request trace (dynamo.request.trace.v1 events)",
    "applied_compute": "Applied Compute agentic workload (sessions of turns and tool calls)",
    "burstgpt": "BurstGPT trace",
    "splitwise": "Splitwise trace",
    "vidur": "Vidur trace",
    "llmservingsim": "LLMServingSim trace (JSON lines, times in ns)",
    "lengths": "lengths only (two columns of token counts, no time)",
    "histogram": "joint histogram of lengths (prompt_tokens_le, output_tokens_le, count)",
    "percentiles": "table of percentiles of lengths",
    "columns": "CSV with columns for time, prompt tokens and output tokens",
    "json_lines": "JSON lines with time, prompt tokens and output tokens",
}
"""What is read, by name; an import's `format` is one of these (or "synthetic")."""

UNTIMED = frozenset({"lengths", "histogram", "percentiles", "applied_compute"})
"""Formats without arrival times: a rate and a burstiness are asked for."""

ROLES = ("time", "prompt", "output", "max_tokens", "priority", "class", "status")
"""What a column can be mapped to."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns by their names in the file; in JSON a point leads into an object (usage.prompt_tokens).

    `time` is None for lengths only; `unit` is None where the file does not say it (a numeric column that is
    just called "timestamp"). `mapped` says that a person chose columns. `length_unit` is what the lengths
    count where that is not tokens. `stamps`: the times of JSON lines are dates and times of day in quotes."""

    format: str
    prompt: str
    output: str
    time: str | None = None
    unit: Unit | None = None
    request_class: str | None = None
    max_tokens: str | None = None
    priority: str | None = None
    status: str | None = None
    header: tuple[str, ...] = ()
    delimiter: str = ","
    header_line: int = 1
    json: bool = False
    mapped: bool = False
    length_unit: str = "tokens"
    stamps: bool = False

    @property
    def used(self) -> dict[str, str]:
        """Column by role, for the roles that have one."""
        names = (
            self.time,
            self.prompt,
            self.output,
            self.max_tokens,
            self.priority,
            self.request_class,
            self.status,
        )
        return {role: name for role, name in zip(ROLES, names, strict=True) if name}

    @property
    def unread(self) -> tuple[str, ...]:
        """Columns of the file that are not used."""
        used = set(self.used.values())
        return tuple(name for name in self.header if name not in used)
