"""Traffic and candidates as CSV rows: raw numbers, units in the headers; texts that spreadsheets would run are
made harmless (calibration/exports.py)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from calibration.exports import safe_cell
from planner.knob_columns import hardware_names, hardware_text
from planner.objective_columns import is_joint
from planner.traffic import Traffic

BLOCK_ROWS = 5_000


def csv_blocks(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The file in pieces of BLOCK_ROWS rows, so that a million of them are never held at once."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([safe_cell(column) for column in columns])
    for number, row in enumerate(rows, 1):
        writer.writerow([safe_cell(cell) for cell in row])
        if number % BLOCK_ROWS == 0:
            yield out.getvalue()
            out.seek(0)
            out.truncate()
    yield out.getvalue()


def request_table(traffic: Traffic) -> tuple[list[str], Iterator[list[Any]]]:
    """Columns and rows, one row per request; optional columns only where the traffic has them."""
    arrays: dict[str, Any] = {
        "arrival_s": traffic.arrival_s, "prompt_tokens": traffic.prompt_tokens, "output_tokens": traffic.output_tokens,
        "max_tokens": traffic.max_tokens, "priority": traffic.priority, "class": traffic.request_class,
    }  # fmt: skip
    there = {name: array for name, array in arrays.items() if array is not None}
    hashes = traffic.prefix_hashes
    columns = [*there, *(["hash_ids"] if hashes is not None else [])]

    def rows() -> Iterator[list[Any]]:
        for first in range(0, traffic.requests, BLOCK_ROWS):
            block = slice(first, min(first + BLOCK_ROWS, traffic.requests))
            for i, row in enumerate(zip(*(a[block].tolist() for a in there.values()), strict=True), first):
                cells = list(row)
                if "class" in there:
                    at = list(there).index("class")
                    cells[at] = traffic.class_names[cells[at]]
                if hashes is not None:
                    own = hashes.flat[hashes.offsets[i] : hashes.offsets[i + 1]]
                    cells.append(" ".join(map(str, own.tolist())))
                yield cells

    return columns, rows()


KNOBS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "async_scheduling",
         "block_size", "num_blocks")  # fmt: skip
SPLIT_COLUMNS = ("prefill", "decode", "hand_off", "transfer_chunk_tokens", "local_prefill_tokens")
BEHAVIOUR = ("utilisation", "uncovered_share", "mean_batch", "peak_running", "preemptions", "steps",
             "prompt_tokens_per_s", "generated_tokens_per_s")  # fmt: skip
SPLIT = ("front_end", "queue", "prefill", "wait_between_chunks", "transfer", "first_decode")


def candidate_table(result: Mapping[str, Any]) -> tuple[list[str], Iterator[list[Any]]]:
    """Columns and rows, one row per combination of knobs: what was predicted, how it behaves, why it lost."""
    objectives = [
        _column_name(o) for o in result["summary"]["objectives"]
    ]  # every candidate has them in this order, or none
    knobs = _knob_names(result["candidates"])
    names = hardware_names(result)
    columns = [
        "deployment",
        "hardware",
        *knobs,
        *(f"split_{name}" for name in SPLIT_COLUMNS),
        "replicas",
        "status",
        "reason",
        "worst_margin",
    ]
    for name, unit in objectives:
        columns += [f"{name}_{unit}", f"{name}_limit_{unit}", f"{name}_margin", f"{name}_claimed"]
    columns += [*BEHAVIOUR, *(f"mean_{part}_s" for part in SPLIT)]
    columns += ["trade_ttft_s", "trade_itl_s", "trade_status", "warnings"]

    def rows() -> Iterator[list[Any]]:
        for candidate in result["candidates"]:
            behaviour, trade = candidate["behaviour"] or {}, candidate["trade"] or {}
            own, split = _flat(candidate), candidate.get("split") or {}
            where = hardware_text(candidate, names) or "".join(names[:1])
            cells = [candidate.get("deployment", "aggregated"), where, *(own.get(knob) for knob in knobs)]
            cells += [split.get(name) for name in SPLIT_COLUMNS]
            cells += [candidate[key] for key in ("replicas", "status", "reason", "worst_margin")]
            for o in candidate["objectives"] or [{}] * len(objectives):
                cells += [o.get(key) for key in ("predicted", "limit", "margin", "claimed")]
            cells += [behaviour.get(key) for key in BEHAVIOUR]
            cells += [(behaviour.get("split_s") or {}).get(part) for part in SPLIT]
            cells += [trade.get(key) for key in ("ttft_s", "itl_s", "status")]
            yield [*cells, "; ".join(candidate["warnings"])]

    return columns, rows()


def _column_name(o: Mapping[str, Any]) -> tuple[str, str]:
    """The objective's part of a column's name, and the unit: seconds, or a share of several limits."""
    of = f"{o['request_class']}_" if o.get("request_class") else ""
    return f"{of}{o['metric']}_p{o['percentile']:g}", "of_limits" if is_joint(o) else "s"


def _knob_names(candidates: Sequence[Mapping[str, Any]]) -> list[str]:
    """vLLM's as ever; whatever else there is behind them, in the order in which it comes."""
    found = dict.fromkeys(name for candidate in candidates for name in _flat(candidate))
    known = [name for name in KNOBS if name in found]
    return [*known, *(name for name in found if name not in KNOBS)] or list(KNOBS)


def _flat(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Of two pools `prefill_NAME` and `decode_NAME`."""
    knobs = candidate["knobs"]
    if not candidate.get("split"):
        return dict(knobs)
    return {f"{role}_{name}": value for role in ("prefill", "decode") for name, value in knobs[role].items()}
