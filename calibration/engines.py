"""Whose engine was measured, and what that means for a plan for another one.

Step times belong to an engine as much as to a device. Between engines that run the same matrix products on the same
device most of a step is alike; what differs most is decode attention inside a step that also has a chunk. Where
kernels serve decode rows and chunks apart it costs what it costs in pure decode; where one kernel serves both, vLLM's
does, it cost 1.4 to 3.8 times that. So a plan for an engine that is not the one measured says so, and its
intervals hold every factor of `MIXED_ATTENTION` on that part of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OURS, UNKNOWN = "ridgeline", "unknown"
#: How the step times came: a run of our own engine, an engine's log, a table somebody gave, published curves.
SOURCES = ("measured", "iteration log", "step table", "published curve")
#: Factor on the price of decode attention in steps with a chunk, from an engine to another one.
MIXED_ATTENTION = (1.0, 3.8)
LARGEST_FACTOR = 100.0
MAX_TEXT = 120


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """The engine whose steps were timed: its name ("ridgeline", "vllm", "unknown"...), its version, and how.

    `mixed_attention`: what decode attention inside mixed steps may cost in another engine, as a factor (low, high)
    of what it cost in this one. Raises ValueError for unknown sources, texts that are no line, or factors out of
    order.
    """

    name: str
    version: str = ""
    source: str = "measured"
    mixed_attention: tuple[float, float] = MIXED_ATTENTION

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("version", self.version)):
            if len(value) > MAX_TEXT or not value.isprintable():
                raise ValueError(f"{field} must be at most {MAX_TEXT} printable characters")
        if not self.name:
            raise ValueError("name must not be empty")
        if self.source not in SOURCES:
            raise ValueError(f"source must be one of {', '.join(SOURCES)}")
        low, high = self.mixed_attention
        if not 0 < low <= high <= LARGEST_FACTOR:
            raise ValueError(f"mixed_attention must be two factors, 0 < low <= high <= {LARGEST_FACTOR:g}")

    @property
    def label(self) -> str:
        """ "vllm 0.19.0", as a sentence names it."""
        return (
            f"{self.name} {self.version}".strip() if self.name != UNKNOWN else "an engine that was not named"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "source": self.source,
            "mixed_attention": list(self.mixed_attention),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MeasuredEngine:
        """Inverse of `to_dict`; raises ValueError for anything else."""
        texts = [values.get(name, "") for name in ("name", "version", "source")]
        factors = values.get("mixed_attention", list(MIXED_ATTENTION))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("name, version and source must be texts")
        numbers = isinstance(factors, list | tuple) and len(factors) == 2
        if not numbers or not all(isinstance(f, int | float) and not isinstance(f, bool) for f in factors):
            raise ValueError("mixed_attention must be two numbers")
        name, version, source = texts
        return cls(name, version, source, (float(factors[0]), float(factors[1])))


@dataclass(frozen=True, slots=True)
class Foreign:
    """What a plan for another engine than the measured one has to allow for, and to say."""

    mixed_attention: tuple[float, float]
    sentence: str


def foreign(measured: MeasuredEngine, planned: str, version: str = "") -> Foreign | None:
    """None where the step times are the planned engine's own (`planned` by its name, e.g. "vllm").

    Another version of the same engine widens nothing, but is said.
    """
    shown = f"{planned} {version}".strip()
    if measured.name.casefold() == planned.casefold():
        if not measured.version or not version or measured.version == version:
            return None
        return Foreign((1.0, 1.0), f"Step times are of {measured.label}; this plan is for {shown}.")
    low, high = measured.mixed_attention
    return Foreign(
        (low, high),
        f"Step times are of {measured.label}, not of {shown}: its intervals allow for decode attention in steps with a "
        f"prefill chunk costing {low:g} to {high:g} times as much.",
    )


def parse_engine(text: str, source: str) -> MeasuredEngine:
    """ "vllm 0.19.0" as a person writes it; empty: an engine that was not named. Raises ValueError."""
    name, _, version = " ".join(text.split()).partition(" ")
    return MeasuredEngine(name.lower() or UNKNOWN, version.removeprefix("v"), source)
