"""Dynamo request traces (dynamo.request.trace.v1): events, of which request_end tells of a request.

When the request was received is recorded, also for turns that waited for others, so nothing has to be assumed
of them. Payloads and tool events are counted and not read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from planner.traffic.columns import Columns
from planner.traffic.formats.fields import Fields
from planner.traffic.formats.special import Blocks, Special, objects
from planner.traffic.formats.turns import Turn, check_number, fill
from planner.traffic.layout import Layout
from planner.traffic.model import Finding
from planner.traffic.numbers import quoted
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems


def read_dynamo(
    blocks: Blocks, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> Special:
    turns: list[Turn] = []
    others: Counter[str] = Counter()
    sizes: dict[int, int] = {}
    for line, row in objects(blocks, columns, problems):
        kind = row.get("event_type")
        if kind != "request_end":
            if not isinstance(kind, str):
                problems.add(line, "event_type", "the event's type is missing")
            others[str(kind)[:40]] += 1
            continue
        columns.count_rows(1, line)
        check_number(columns.rows, columns.limits)
        fields = Fields(line, row, problems)
        turn, block_tokens = _turn(fields)
        if turn is None:
            continue
        if block_tokens:
            sizes.setdefault(block_tokens, line)
        turns.append(turn)
    if len(sizes) > 1:
        (first, _), (other, line) = list(sizes.items())[:2]
        problems.add(line, "trace_block_size", f"{other} where the events before have {first}")
    problems.check()
    # In the file's milliseconds: stamps since 1970 would lose their last digits as seconds.
    fill(turns, np.array([turn.at_s for turn in turns], np.float64), columns)
    found = Layout(
        "dynamo", "input_length", "output_tokens", "request_received_ms", "ms", json=True,
        header_line=layout.header_line,
    )  # fmt: skip
    findings = []
    if others:
        listed = ", ".join(f"{quoted(name)} ({count:,})" for name, count in others.most_common(8))
        message = f"Events that are no request_end were not read: {listed}."
        findings.append(Finding("events_not_read", message, sum(others.values())))
    return Special(found, tuple(findings), {}, next(iter(sizes), None))


def _turn(fields: Fields) -> tuple[Turn | None, int | None]:
    request = fields.inside("request")
    replay = request.inside("replay")
    source = replay if "input_length" in replay.row else request
    prompt = source.count("input_length", "input_tokens")
    output = request.count("output_tokens")
    at_s = request.seconds("request_received_ms", 1.0)
    if at_s is None:
        request.wrong("request_received_ms", "the time is missing")
    hashes = replay.hashes("input_sequence_hashes")
    size: Any = replay.count("trace_block_size") if replay.row.get("trace_block_size") is not None else None
    model = request.name("model")
    if not all(part.sound for part in (fields, request, replay)):
        return None, None
    return Turn(fields.line, prompt, output, at_s, hashes=hashes, request_class=model), size
