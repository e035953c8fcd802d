"""What a reader of this package gives beside the filled columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner.traffic.columns import Columns
from planner.traffic.json_values import loaded
from planner.traffic.layout import Layout
from planner.traffic.model import Finding
from planner.traffic.problems import Problems

Blocks = Iterator[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Special:
    """How the file was read (times in seconds from its own origin), what to tell, what the recipe adds.

    block_tokens is the size of the hashed blocks where the file states it."""

    layout: Layout
    findings: tuple[Finding, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    block_tokens: int | None = None


def objects(blocks: Blocks, columns: Columns, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of JSON lines. Blank lines are counted, other lines that are no object are problems."""
    for first_line, block in blocks:
        for line, text in enumerate(block.split(b"\n")[:-1], first_line):
            if not text.strip():
                columns.skip_blank(np.array([line]))
                continue
            try:
                row = loaded(text)
            except (ValueError, RecursionError) as error:
                problems.add(line, None, f"not a complete JSON object ({error})")
                continue
            if isinstance(row, dict):
                yield line, row
            else:
                problems.add(line, None, "not a JSON object")
