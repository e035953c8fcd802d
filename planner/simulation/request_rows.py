"""One row per request, for a CSV file or JSON: everything that the run found about it.

Times are seconds from the start of the trace; what did not happen is an empty cell (JSON: null).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from planner.simulation.arrays import Floats, Ints
from planner.simulation.attainment import values_s
from planner.simulation.cluster.order import REFUSALS
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.outcome import Outcome
from planner.simulation.phases import ttft_parts_s

#: Columns of every run, in order; a cluster adds CLUSTER_COLUMNS, a traffic with classes "class".
COLUMNS: Final = (
    "request", "arrival_s", "prompt_tokens", "output_tokens", "outcome", "ttft_s", "tpot_s", "largest_gap_s",
    "e2e_s", "queue_s", "prefill_s", "chunk_wait_s", "transfer_s", "first_decode_s", "first_token_s", "done_s",
    "preemptions", "hit_tokens", "rehit_tokens",
)  # fmt: skip
CLUSTER_COLUMNS: Final = ("prefill_replica", "decode_replica", "moved_bytes", "lost_kv")


def columns_of(
    outcome: Outcome | ClusterOutcome,
    request_class: Ints | None = None,
    class_names: Sequence[str] = (),
) -> dict[str, list[Any]]:
    """By column name, one plain Python value per request; None where there is none."""
    requests = outcome.requests if isinstance(outcome, ClusterOutcome) else outcome
    parts = ttft_parts_s(outcome)
    count = len(requests.arrival_s)
    refusal = outcome.refusal if isinstance(outcome, ClusterOutcome) else (~requests.served).astype(np.int64)
    tpot = np.where(requests.output_tokens >= 2, values_s(requests, "tpot"), np.nan)
    gaps = np.where(requests.output_tokens >= 2, values_s(requests, "itl"), np.nan)
    floats: dict[str, Floats] = {
        "arrival_s": requests.arrival_s,
        "ttft_s": values_s(requests, "ttft"),
        "tpot_s": tpot,
        "largest_gap_s": gaps,
        "e2e_s": values_s(requests, "e2e"),
        "queue_s": parts["queue"],
        "prefill_s": parts["prefill"],
        "chunk_wait_s": parts["chunk wait"],
        "transfer_s": parts["transfer"],
        "first_decode_s": parts["first decode"],
        "first_token_s": requests.first_token_s,
        "done_s": requests.done_s,
    }
    columns: dict[str, list[Any]] = {name: _numbers(values) for name, values in floats.items()}
    columns["request"] = list(range(count))
    columns["outcome"] = [REFUSALS[code] for code in refusal.tolist()]
    for name in ("prompt_tokens", "output_tokens", "preemptions", "hit_tokens", "rehit_tokens"):
        columns[name] = getattr(requests, name).tolist()
    order = list(COLUMNS)
    if isinstance(outcome, ClusterOutcome):
        order += CLUSTER_COLUMNS
        for name in ("prefill_replica", "decode_replica"):
            columns[name] = [None if r < 0 else r for r in getattr(outcome, name).tolist()]
        columns["moved_bytes"] = _numbers(outcome.moved_bytes)
        columns["lost_kv"] = outcome.lost_kv.tolist()
    if request_class is not None:
        order.append("class")
        columns["class"] = [class_names[number] for number in request_class.tolist()]
    return {name: columns[name] for name in order}


def json_rows(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """One object per request."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def csv_lines(columns: dict[str, list[Any]], lines_at_once: int = 4096) -> Iterator[str]:
    """The CSV file in pieces, header first: memory does not grow with the number of requests."""
    rows = zip(*columns.values(), strict=True)
    piece: list[Sequence[Any]] = [list(columns)]
    while piece:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(piece)
        yield text.getvalue()
        piece = list(islice(rows, lines_at_once))


def _numbers(values: Floats) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
