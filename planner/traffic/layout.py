"""Which column means what: the result of recognition and the input of the readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "ms", "us", "ns", "stamp"]
UNITS_PER_S: dict[str, int] = {
    "s": 1,
    "ms": 1_000,
    "us": 1_000_000,
    "ns": 1_000_000_000,
    "stamp": 1_000_000_000,
}
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}

FORMATS = {
    "azure": "Azure trace (TIMESTAMP, ContextTokens, GeneratedTokens)",
    "mooncake": "Mooncake trace (JSON lines: timestamp in ms, input_length, output_length, hash_ids)",
    "burstgpt": "BurstGPT trace",
    "splitwise": "Splitwise trace",
    "vidur": "Vidur trace",
    "llmservingsim": "LLMServingSim trace (JSON lines, times in ns)",
    "lengths": "lengths only (two columns of token counts, no time)",
    "columns": "CSV with columns for time, prompt tokens and output tokens",
    "json_lines": "JSON lines with time, prompt tokens and output tokens",
}
"""What is read, by name; an import's `format` is one of these (or "synthetic")."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns by their names in the file. `time` is None for lengths only; `unit` is None where the file
    does not say it (a numeric column that is just called "timestamp")."""

    format: str
    prompt: str
    output: str
    time: str | None = None
    unit: Unit | None = None
    request_class: str | None = None
    header: tuple[str, ...] = ()
    delimiter: str = ","
    header_line: int = 1
    json: bool = False

    @property
    def unread(self) -> tuple[str, ...]:
        """Columns of the file that are not used."""
        used = (self.time, self.prompt, self.output, self.request_class)
        return tuple(name for name in self.header if name not in used)
