"""What a calibration's page shows as tables: errors by kind of step, and nested records as label and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibration.capacity import KVCapacity
from calibration.transfer import TransferTable

KINDS = ("decode", "prefill", "mixed")
MAX_TEXT = 400


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Held-out errors of one kind of step, as ratios; ``bias`` is the mean signed error."""

    kind: str
    count: int
    median: float
    p90: float
    bias: float | None


def error_rows(heldout: Mapping[str, Any]) -> list[ErrorRow]:
    """From the stored held-out report: one row per kind of step, then all together."""
    by_kind, bias = heldout.get("by_kind") or {}, heldout.get("bias") or {}
    rows = [
        ErrorRow(kind, int(by_kind[kind][0]), by_kind[kind][1], by_kind[kind][2], bias.get(kind))
        for kind in KINDS
        if kind in by_kind
    ]
    if rows and "median" in heldout:
        total = sum(row.count for row in rows)
        rows.append(ErrorRow("all", total, heldout["median"], heldout["p90"], bias.get("all")))
    return rows


@dataclass(frozen=True, slots=True)
class PoolRow:
    budget_tokens: int
    working_bytes: int
    kv_tokens: int


def pool_rows(capacity: KVCapacity | None) -> list[PoolRow]:
    """KV pool by token budget; empty where only one pool is known."""
    if capacity is None:
        return []
    rows = zip(capacity.budget_tokens, capacity.working_bytes, capacity.kv_tokens, strict=True)
    return [PoolRow(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class TransferRow:
    """``bytes_per_s``: all of the transfer's time counted, latency too. ``rank_bytes``: what one rank moves of it."""

    size_bytes: float
    rank_bytes: float
    seconds: float
    bytes_per_s: float


#: Sizes at which a link that is one line is shown [bytes].
LINE_SIZES = (1e6, 1e8, 1e9, 1e10)


def transfer_rows(table: TransferTable) -> list[TransferRow]:
    """The table's own sizes, or LINE_SIZES of a link that is one line for all."""
    sizes = table.size_bytes if len(table.size_bytes) > 1 else LINE_SIZES
    found = [(size, table.seconds(size)) for size in sizes]
    return [TransferRow(size, size / table.ranks, seconds, size / seconds) for size, seconds in found]


# What a reader looks for first in the record of an environment; the rest is there to be unfolded.
FIRST = (
    "processor", "gpu", "device_name", "driver", "torch", "cuda", "dtype", "intra_op_threads", "clock", "mixed_mode",
    "representative", "observed contended_share", "observed sentinel_drift", "started_at",
)  # fmt: skip


def told_first(rows: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The rows of FIRST in that order, and the others. A short record is told whole."""
    if len(rows) <= len(FIRST):
        return rows, []
    known = dict(rows)
    first = [(key, known[key]) for key in FIRST if key in known]
    return first, [row for row in rows if row[0] not in FIRST]


def flat(record: Mapping[str, Any] | None, prefix: str = "") -> list[tuple[str, str]]:
    """(key, value) of a nested JSON object, keys joined by spaces; empty values are left away."""
    rows: list[tuple[str, str]] = []
    for key, value in (record or {}).items():
        name = f"{prefix} {key}".strip()
        if isinstance(value, Mapping):
            rows += flat(value, name)
        elif value not in (None, "", [], {}):
            rows.append(
                (
                    name,
                    f"{value:,.0f}" if key.endswith("_bytes") and isinstance(value, float) else _text(value),
                )
            )
    return rows


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value[:40])[:MAX_TEXT]
    return str(value)[:MAX_TEXT]
