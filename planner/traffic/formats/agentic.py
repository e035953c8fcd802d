"""Agentic Mooncake traces (dynamo.agentic_mooncake): a header line, then requests with what each waits for.

`dependencies` name requests whose dispatch or completion starts a delay; an older form has `wait_for`, `delay`
and `tool_wait_ms`. Prompts are whole.
"""

from __future__ import annotations

from typing import Any

from planner.traffic.columns import Columns
from planner.traffic.formats.fields import Fields
from planner.traffic.formats.special import Blocks, Special, objects
from planner.traffic.formats.turns import Turn, Wait, arrivals_s, check_number, fill
from planner.traffic.layout import Layout
from planner.traffic.numbers import quoted
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems


def read_agentic(
    blocks: Blocks, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> Special:
    turns: list[Turn] = []
    named: dict[str, int] = {}
    waiting: list[tuple[int, Fields]] = []
    block_tokens: int | None = None
    for line, row in objects(blocks, columns, problems):
        fields = Fields(line, row, problems)
        if "schema" in row:
            block_tokens = fields.count("block_size") or None if row.get("block_size") is not None else None
            continue
        columns.count_rows(1, line)
        check_number(columns.rows, columns.limits)
        own = "not_before_ms" if row.get("not_before_ms") is not None else "timestamp"
        turn = Turn(
            line, fields.count("input_length", "input_tokens"), fields.count("output_length", "output_tokens"),
            fields.seconds(own, 1e-3), hashes=fields.hashes(), request_class=fields.name("model"),
        )  # fmt: skip
        name = fields.name("request_id")
        if name is not None and name in named:
            fields.wrong("request_id", f"{quoted(name)} is on line {turns[named[name]].line} already")
        if not fields.sound:
            continue
        if name is not None:
            named[name] = len(turns)
        if row.get("dependencies") or row.get("wait_for"):
            waiting.append((len(turns), fields))
        elif turn.at_s is None:
            fields.wrong("not_before_ms", "a request that waits for no other needs a time")
        turns.append(turn)
    problems.check()
    for index, fields in waiting:
        turns[index].waits = _waits(fields, named)
    problems.check()
    times, assumed = arrivals_s(turns, options, problems)
    problems.check()
    fill(turns, times, columns)
    kind = Layout(
        "mooncake_agentic", "input_length", "output_length", "not_before_ms", "s", json=True,
        header_line=layout.header_line,
    )  # fmt: skip
    recipe = {"turn_first_token_s": options.turn_first_token_s, "turn_token_s": options.turn_token_s}
    return Special(kind, tuple(assumed), recipe if assumed else {}, block_tokens)


def _waits(fields: Fields, named: dict[str, int]) -> list[Wait]:
    if fields.row.get("wait_for"):
        delay_s = (fields.seconds("delay", 1e-3) or 0.0) + (fields.seconds("tool_wait_ms", 1e-3) or 0.0)
        entries: Any = fields.row["wait_for"]
        if not isinstance(entries, list):
            fields.wrong("wait_for", "not a list of request ids")
            return []
        places = [_place(fields, "wait_for", name, named) for name in entries]
        return [Wait(place, completion=True, delay_s=delay_s) for place in places if place is not None]
    entries = fields.row["dependencies"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        fields.wrong("dependencies", "not a list of objects")
        return []
    waits = []
    for entry in entries:
        inner = Fields(fields.line, entry, fields.problems)
        trigger = entry.get("trigger", "completion")
        if trigger not in ("dispatch", "completion"):
            inner.wrong(
                "dependencies", f"the trigger {quoted(str(trigger))} is neither dispatch nor completion"
            )
        place = _place(inner, "dependencies", entry.get("request_id"), named)
        delay_s = inner.seconds("delay_ms", 1e-3, default=0.0) or 0.0
        if place is not None:
            waits.append(Wait(place, completion=trigger == "completion", delay_s=delay_s))
    return waits


def _place(fields: Fields, column: str, name: object, named: dict[str, int]) -> int | None:
    place = named.get(str(name)) if isinstance(name, str | int) else None
    if place is None:
        fields.wrong(column, f"there is no request {quoted(str(name))} in the file")
    return place
