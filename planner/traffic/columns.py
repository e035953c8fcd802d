"""What the readers fill: growing columns, in the file's order, compact from the first block on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic.errors import LISTED, TooLarge
from planner.traffic.growing import Growing
from planner.traffic.model import Integers
from planner.traffic.stream import Limits

MAX_CLASSES = 1_000
MAX_CLASS_BYTES = 128
NO_CLASS = "(none)"
"""The class of rows whose column for it is empty."""


@dataclass(slots=True)
class NotedLines:
    """How many lines, and the first and the last of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)
    last: int = 0

    def add(self, lines: Integers) -> None:
        if len(lines):
            self.count += len(lines)
            self.last = int(lines[-1])
            self.first += lines[: LISTED - len(self.first)].tolist()


@dataclass(slots=True)
class Columns:
    """Chunks of equal length: line numbers, times (in the file's unit, float64 or int64), lengths, caps on the
    output (0: none given), priorities, classes, whether the row says that it failed, prefix hashes. `rows`
    counts all rows of the file, `last_line` is where the last of them ends."""

    limits: Limits
    rows: int = 0
    last_line: int = 0
    lines: Growing[np.int32] = field(default_factory=Growing)
    times: Growing[Any] = field(default_factory=Growing)
    prompts: Growing[np.int32] = field(default_factory=Growing)
    outputs: Growing[np.int32] = field(default_factory=Growing)
    max_tokens: Growing[np.int32] = field(default_factory=Growing)
    priorities: Growing[np.int64] = field(default_factory=Growing)
    failed: Growing[np.bool_] = field(default_factory=Growing)
    classes: Growing[np.int16] = field(default_factory=Growing)
    class_codes: dict[str, int] = field(default_factory=dict)
    hashes: Growing[np.uint64] = field(default_factory=Growing)
    hash_counts: Growing[np.int32] = field(default_factory=Growing)
    hashes_read: int = 0
    blank: NotedLines = field(default_factory=NotedLines)
    multi_line: NotedLines = field(default_factory=NotedLines)

    def count_rows(self, count: int, last_line: int) -> None:
        self.rows += count
        self.last_line = last_line
        self._check_cap(self.rows)

    def skip_blank(self, lines: Integers) -> None:
        self.blank.add(lines)
        self._check_cap(self.blank.count)

    @property
    def blank_between_rows(self) -> int:
        """Blank lines before the last row; after it there can only be blank ones."""
        return self.blank.count - max(0, self.blank.last - self.last_line)

    def _check_cap(self, count: int) -> None:
        if count > self.limits.rows:
            message = f"The file has more than {self.limits.rows:,} rows, the most that are read."
            raise TooLarge("rows", self.limits.rows, message)

    def add(self, lines: Integers, prompts: Integers, outputs: Integers) -> None:
        self.lines.append(lines.astype(np.int32))
        self.prompts.append(prompts.astype(np.int32))
        self.outputs.append(outputs.astype(np.int32))

    def add_hashes(self, flat: NDArray[np.uint64], counts: NDArray[np.int32]) -> None:
        self.hashes_read += len(flat)
        if self.hashes_read > self.limits.hash_ids:
            message = f"The file has more than {self.limits.hash_ids:,} hash_ids, the most that are read."
            raise TooLarge("hash_ids", self.limits.hash_ids, message)
        self.hashes.append(flat)
        self.hash_counts.append(counts)

    def add_options(
        self,
        max_tokens: Integers | None = None,
        priorities: Integers | None = None,
        failed: NDArray[np.bool_] | None = None,
    ) -> None:
        """The optional columns of a chunk; the same ones with every chunk."""
        if max_tokens is not None:
            self.max_tokens.append(max_tokens.astype(np.int32))
        if priorities is not None:
            self.priorities.append(priorities.astype(np.int64))
        if failed is not None:
            self.failed.append(failed)

    def class_code(self, name: str) -> int | None:
        """The number of a class, in order of appearance; None where there are too many."""
        if name not in self.class_codes and len(self.class_codes) >= MAX_CLASSES:
            return None
        return self.class_codes.setdefault(name, len(self.class_codes))
