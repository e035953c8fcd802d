"""Tables as CSV, for spreadsheets as well: a text that a spreadsheet would run as a formula is made harmless."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from calibration.curves import mean_context
from calibration.steptime import StepSample

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
SAMPLE_COLUMNS = (
    "sample", "role", "kind", "prefill_tokens", "prefill_context", "decode_seqs", "decode_context",
    "decode_contexts", "chunks", "repeat", "step_s", "contended_share", "host_gap_s",
)  # fmt: skip


def safe_cell(value: Any) -> Any:
    """Numbers as they are; a text that starts like a formula gets a leading apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([safe_cell(column) for column in columns])
    writer.writerows([safe_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def sample_rows(samples: Iterable[StepSample]) -> Iterator[list[Any]]:
    """One row per repeat, in SAMPLE_COLUMNS: contexts and chunks whole ("256@512" is 256 tokens after 512)."""
    for number, sample in enumerate(samples):
        shape = sample.shape
        fields = [
            number, sample.role, sample.kind, sum(chunk.query_tokens for chunk in shape.chunks),
            max((chunk.cached_tokens for chunk in shape.chunks), default=0), len(shape.decode_contexts),
            round(mean_context(sample)), " ".join(map(str, shape.decode_contexts)),
            " ".join(f"{chunk.query_tokens}@{chunk.cached_tokens}" for chunk in shape.chunks),
        ]  # fmt: skip
        for repeat, seconds in enumerate(sample.seconds):
            yield [*fields, repeat, repr(seconds), sample.contended_share, sample.host_gap_s]
