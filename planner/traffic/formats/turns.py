"""Requests that wait for other requests, turned into arrivals.

A file of sessions or workflows says when a turn may start after another has been sent or has ended; when that
was depends on the server. An open trace needs arrivals, so a turn that others wait for is taken to run for
`first_token_s` and `token_s` for each of its output tokens, which the import states and records. Turns with a
time of their own keep it. Arrival = max(own time, every wait's start + its delay).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner.traffic.columns import Columns
from planner.traffic.errors import LISTED, TooLarge
from planner.traffic.model import Finding, Floats
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems
from planner.traffic.stream import Limits


@dataclass(frozen=True, slots=True)
class Wait:
    """For another turn (its place in the list) to be sent, or to end, and then for delay_s."""

    turn: int
    completion: bool
    delay_s: float


@dataclass(slots=True)
class Turn:
    """One request: its line, lengths, own earliest time in seconds (None: none), what it waits for.

    service_s is how long it ran where the file says so."""

    line: int
    prompt: int
    output: int
    at_s: float | None = None
    waits: list[Wait] = field(default_factory=list)
    hashes: list[int] | None = None
    request_class: str | None = None
    service_s: float | None = None


def check_number(count: int, limits: Limits) -> None:
    if count > limits.turns:
        message = (
            f"The file has more than {limits.turns:,} turns that wait for others, the most that are read."
        )
        raise TooLarge("turns", limits.turns, message)


def arrivals_s(turns: list[Turn], options: ImportOptions, problems: Problems) -> tuple[Floats, list[Finding]]:
    """When each turn arrives, float64[N], and the assumption where one was made. A circle is a problem."""
    followers: list[list[int]] = [[] for _ in turns]
    open_waits = np.zeros(len(turns), np.int64)
    assumed = set()
    for index, turn in enumerate(turns):
        open_waits[index] = len(turn.waits)
        for wait in turn.waits:
            followers[wait.turn].append(index)
            if wait.completion and turns[wait.turn].service_s is None:
                assumed.add(wait.turn)
    times = np.array([turn.at_s or 0.0 for turn in turns], np.float64)
    ready = [index for index in range(len(turns)) if not open_waits[index]]
    while ready:
        index = ready.pop()
        for follower in followers[index]:
            open_waits[follower] -= 1
            if not open_waits[follower]:
                times[follower] = _arrival_s(turns[follower], turns, times, options)
                ready.append(follower)
    for index in np.flatnonzero(open_waits > 0).tolist():
        problems.add(turns[index].line, "dependencies", "waits, through others, for itself", "circle")
    return times, _assumption(turns, assumed, options)


def _arrival_s(turn: Turn, turns: list[Turn], times: Floats, options: ImportOptions) -> float:
    starts = [turn.at_s or 0.0]
    for wait in turn.waits:
        before = turns[wait.turn]
        ran_s = service_s(before, options) if wait.completion else 0.0
        starts.append(float(times[wait.turn]) + ran_s + wait.delay_s)
    return max(starts)


def service_s(turn: Turn, options: ImportOptions) -> float:
    """How long a turn is taken to run."""
    if turn.service_s is not None:
        return turn.service_s
    return options.turn_first_token_s + options.turn_token_s * turn.output


def _assumption(turns: list[Turn], assumed: set[int], options: ImportOptions) -> list[Finding]:
    if not assumed:
        return []
    lines = sorted(turns[index].line for index in assumed)
    message = (
        f"Turns wait for the end of {len(lines):,} earlier ones. How long those run depends on the server; "
        f"{options.turn_first_token_s:g} s and {options.turn_token_s:g} s for each of their output tokens were "
        "assumed (turn_first_token_s, turn_token_s), and the arrivals follow from that."
    )
    return [Finding("turn_service_assumed", message, len(lines), tuple(lines[:LISTED]))]


def fill(turns: list[Turn], times: Floats, columns: Columns) -> None:
    """The turns as columns, in the file's order."""
    if not turns:
        return
    columns.lines.append(np.array([turn.line for turn in turns], np.int32))
    columns.times.append(times)
    columns.prompts.append(np.array([turn.prompt for turn in turns], np.int32))
    columns.outputs.append(np.array([turn.output for turn in turns], np.int32))
    if any(turn.hashes is not None for turn in turns):
        flat = [hash_id for turn in turns for hash_id in turn.hashes or ()]
        counts = np.array([len(turn.hashes or ()) for turn in turns], np.int32)
        columns.add_hashes(np.array(flat, np.uint64), counts)
    if any(turn.request_class is not None for turn in turns):
        codes = [columns.class_code(turn.request_class or "(none)") for turn in turns]
        if None not in codes:
            columns.classes.append(np.array(codes, np.int16))
