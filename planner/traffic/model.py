"""Traffic: the requests a deployment must serve, as flat arrays.

A request is an arrival time, a prompt length and an output length; that is all a scheduler needs to know
about it. Times are seconds since the first request, in arrival order; lengths are tokens, at least one each.
What the file said that could not become a request (a failed one, one too long for the model) is not in the
arrays: it is counted in `rows_read` and described, with line numbers, in `warnings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic.errors import TrafficError, TrafficFileError, refuse
from planner.traffic.report import kind_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_TOKENS = 100_000_000
"""A longer prompt or output is a mistake in the file, not a request."""
MAX_DURATION_S = 10 * 366 * 86_400.0
"""Ten years: a longer trace has its times in another unit than was assumed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the file that its user should know. `lines` are the first few, `count` is all:
    the rows it is true of, 0 where it is about the file as a whole."""

    code: str
    message: str
    count: int = 0
    lines: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "kind": kind_of(self.code),
            "message": self.message,
            "count": self.count,
            "lines": list(self.lines),
        }


@dataclass(frozen=True, slots=True)
class PrefixHashes:
    """Hashes of each prompt's leading blocks: request i has flat[offsets[i]:offsets[i + 1]] (64-bit).

    `block_tokens` is the size the lengths agree with, None where none does."""

    flat: NDArray[np.uint64]
    offsets: Integers
    block_tokens: int | None = None

    def take(self, order: NDArray[np.intp]) -> PrefixHashes:
        """The hashes of the requests `order`, in that order; itself if that is all of them as they are."""
        if len(order) == len(self.offsets) - 1 and (np.diff(order) == 1).all():
            return self
        lengths = np.diff(self.offsets)[order]
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], lengths)
        return PrefixHashes(
            self.flat[np.repeat(self.offsets[:-1][order], lengths) + within], offsets, self.block_tokens
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """N requests in order of arrival. Arrays are read-only; all have length N.

    arrival_s starts at 0 and never falls; prompt_tokens and output_tokens are 1..MAX_TOKENS; max_tokens is
    the client's cap on the output (None: the output length is the cap); request_class indexes class_names.
    `recipe` is what it takes to make the same traffic again: options, seed, dialect of the file.
    """

    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    source: str
    format: str
    max_tokens: Integers | None = None
    priority: Integers | None = None
    request_class: NDArray[np.int16] | None = None
    class_names: tuple[str, ...] = ()
    prefix_hashes: PrefixHashes | None = None
    rows_read: int = 0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        problem = _inconsistency(self)
        if problem:
            raise TrafficError([TrafficFileError(None, None, problem, code="inconsistent")])
        if not self.rows_read:
            object.__setattr__(self, "rows_read", len(self.arrival_s))
        for array in (self.arrival_s, self.prompt_tokens, self.output_tokens, self.max_tokens, self.priority):
            if array is not None:
                array.flags.writeable = False

    @property
    def requests(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1])

    @property
    def rate_per_s(self) -> float | None:
        """(N - 1) / duration: gaps per second, which is what a rate means. None for a single instant."""
        return (self.requests - 1) / self.duration_s if self.duration_s > 0 else None

    def with_warnings(self, *findings: Finding) -> Traffic:
        return replace(self, warnings=(*self.warnings, *findings))


def _inconsistency(traffic: Traffic) -> str | None:
    n = len(traffic.arrival_s)
    if n == 0:
        return "There is no request in this traffic."
    expected = {"arrival_s": np.float64, "prompt_tokens": np.int64, "output_tokens": np.int64}
    for name, kind in expected.items():
        array = getattr(traffic, name)
        if array.dtype != kind or array.shape != (n,):
            return f"{name} must be {np.dtype(kind)} of shape ({n},), not {array.dtype} of {array.shape}."
    for name in ("max_tokens", "priority", "request_class"):
        array = getattr(traffic, name)
        if array is not None and array.shape != (n,):
            return f"{name} must have shape ({n},), not {array.shape}."
    arrival_s = traffic.arrival_s
    if not (np.isfinite(arrival_s).all() and arrival_s[0] == 0 and (arrival_s[1:] >= arrival_s[:-1]).all()):
        return "Arrival times must start at 0 and never fall."
    for name in ("prompt_tokens", "output_tokens", "max_tokens"):
        array = getattr(traffic, name)
        if array is not None and not (array.min() >= 1 and array.max() <= MAX_TOKENS):
            return f"{name} must be 1 to {MAX_TOKENS:,}."
    classes = traffic.request_class
    if classes is not None and not 0 <= classes.min() <= classes.max() < len(traffic.class_names):
        return "request_class must index class_names."
    hashes = traffic.prefix_hashes
    if hashes is not None:
        offsets = hashes.offsets
        whole = offsets.shape == (n + 1,) and offsets[0] == 0 and offsets[-1] == len(hashes.flat)
        if not whole or (np.diff(offsets) < 0).any():
            return "The offsets of the prefix hashes do not fit the requests."
    return None


def positive_number(value: float, field: str, unit: str) -> float:
    """An option that must be a finite number above 0; TrafficError names the field otherwise."""
    if isinstance(value, bool) or not np.isfinite(value) or value <= 0:
        raise refuse(f"{field} must be a number of {unit} above 0, not {value}.", code="option", field=field)
    return float(value)
