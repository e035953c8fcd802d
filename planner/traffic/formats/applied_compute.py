"""Applied Compute's agentic workloads: a session a line, as lengths of turns and of the tools between them.

Each turn sends the conversation so far: prompt k = prompt k-1 + its answer + the tool's output. Nothing says
when a session starts: sessions arrive at the rate that is asked for, and later turns follow when the one
before has ended and its tool has run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.traffic.arrivals import arrival_times_s
from planner.traffic.columns import Columns
from planner.traffic.formats.fields import Fields
from planner.traffic.formats.special import Blocks, Special, objects
from planner.traffic.formats.turns import Turn, Wait, arrivals_s, check_number, fill
from planner.traffic.json_values import count_problem, time_value_problem
from planner.traffic.layout import Layout
from planner.traffic.model import MAX_TOKENS, Finding
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems


def read_applied_compute(
    blocks: Blocks, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> Special:
    turns: list[Turn] = []
    starts: list[int] = []
    for line, row in objects(blocks, columns, problems):
        fields = Fields(line, row, problems)
        session = _session(fields, len(turns))
        columns.count_rows(1, line)
        if session:
            starts.append(len(turns))
            turns += session
            check_number(len(turns), columns.limits)
    problems.check()
    columns.rows = len(turns)
    if starts:
        rng = np.random.default_rng(options.seed)
        times = arrival_times_s(
            options.rate_per_s or 0.0, requests=len(starts), interarrival_cv=options.interarrival_cv, rng=rng
        )
        for index, time_s in zip(starts, times.tolist(), strict=True):
            turns[index].at_s = time_s
    arrivals, assumed = arrivals_s(turns, options, problems)
    fill(turns, arrivals, columns)
    kind = Layout(
        "applied_compute", "input_prompt_length", "assistant_response_length", "tool_call_latency", "s", json=True,
        header_line=layout.header_line,
    )  # fmt: skip
    message = (
        f"{len(starts):,} sessions with {len(turns):,} requests: sessions start at {options.rate_per_s:g} a second "
        f"(CV {options.interarrival_cv:g}), later turns follow theirs."
    )
    recipe = {
        "sessions": len(starts), "sessions_per_s": options.rate_per_s, "interarrival_cv": options.interarrival_cv,
        "seed": options.seed, "turn_first_token_s": options.turn_first_token_s,
        "turn_token_s": options.turn_token_s,
    }  # fmt: skip
    return Special(kind, (Finding("sessions", message), *assumed), recipe)


def _session(fields: Fields, place: int) -> list[Turn]:
    turns = fields.count("num_turns")
    prompt = fields.count("input_prompt_length")
    answers, tools = _counts(fields, "assistant_response_length"), _counts(fields, "tool_call_output_length")
    waits_s = _spans(fields, "tool_call_latency")
    last = fields.count("final_assistant_response_length")
    if fields.sound and not len(answers) == len(tools) == len(waits_s) == turns:
        fields.wrong(
            "num_turns", f"{turns} turns, but the lists have {len(answers)}, {len(tools)} and {len(waits_s)}"
        )
    if not fields.sound:
        return []
    session = [Turn(fields.line, prompt, answer) for answer in (*answers, last)]
    for index in range(turns):
        before, turn = session[index], session[index + 1]
        turn.prompt = before.prompt + before.output + tools[index]
        turn.waits = [Wait(place + index, completion=True, delay_s=waits_s[index])]
    if session[-1].prompt > MAX_TOKENS:
        fields.wrong("num_turns", f"the session is longer than {MAX_TOKENS:,} tokens")
        return []
    return session


def _counts(fields: Fields, name: str) -> list[int]:
    return [int(item) for item in _items(fields, name, count_problem)]


def _spans(fields: Fields, name: str) -> list[float]:
    return [float(item) for item in _items(fields, name, time_value_problem)]


def _items(fields: Fields, name: str, problem_of: Any) -> list[Any]:
    value = fields.row.get(name)
    if not isinstance(value, list):
        fields.wrong(name, "not a list")
        return []
    problem = next((found for found in map(problem_of, value) if found), None)
    if problem:
        fields.wrong(name, problem)
        return []
    return value
