"""What the user may say about a file, checked before the file is opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from planner.traffic.errors import TrafficError, refuse
from planner.traffic.layout import FORMATS, UNIT_NAMES
from planner.traffic.model import positive_number


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """None leaves a question to the file.

    format: refuse the file unless it is this one · rate_per_s, interarrival_cv, seed: arrivals for a file of
    lengths only (a CV of 1 is Poisson) · time_unit: of a numeric time column · decimal: the mark in times,
    "." or "," · max_model_len: leave out, and list, rows with prompt + output above it · zero_outputs: leave
    out rows without output, which are failed requests, or keep their arrival with one output token ·
    spread_grid: spread requests that share a stamp over the tick of a coarse clock.
    """

    format: str | None = None
    rate_per_s: float | None = None
    interarrival_cv: float = 1.0
    seed: int = 0
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    decimal: Literal[".", ","] | None = None
    max_model_len: int | None = None
    zero_outputs: Literal["exclude", "keep_arrival"] = "exclude"
    spread_grid: bool = False

    def check(self) -> None:
        """TrafficError that names the option."""
        if self.format is not None and self.format not in FORMATS:
            raise _option("format", f"There is no format {self.format!r}; there are {', '.join(FORMATS)}.")
        if self.rate_per_s is not None:
            positive_number(self.rate_per_s, "rate_per_s", "requests per second")
        if not 0 <= self.interarrival_cv <= 100:
            raise _option("interarrival_cv", "interarrival_cv must be 0 to 100.")
        if not 0 <= self.seed < 2**63:
            raise _option("seed", "seed must be a whole number from 0.")
        if self.time_unit not in (None, *UNIT_NAMES):
            raise _option("time_unit", f"time_unit must be one of {', '.join(UNIT_NAMES)}.")
        if self.decimal not in (None, ".", ","):
            raise _option("decimal", 'decimal must be "." or ",".')
        if self.max_model_len is not None and self.max_model_len < 1:
            raise _option("max_model_len", "max_model_len must be a whole number of tokens above 0.")
        if self.zero_outputs not in ("exclude", "keep_arrival"):
            raise _option("zero_outputs", "zero_outputs must be exclude or keep_arrival.")

    def changed(self) -> dict[str, Any]:
        """The options that are not at their defaults, for the recipe."""
        values = asdict(self)
        return {
            field.name: values[field.name] for field in fields(self) if values[field.name] != field.default
        }


def _option(field: str, message: str) -> TrafficError:
    return refuse(message, code="option", field=field)
