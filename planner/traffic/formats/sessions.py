"""Mooncake traces with sessions: later turns of a session_id come a delay after the one before has ended.

A row with a timestamp of its own arrives then, whatever its delay. Two conventions are in use for the length
of a later turn: the whole prompt, or only what it adds to the conversation ("delta": prompts and answers
before it are sent again). The file decides: if later hash_ids begin with the earlier ones, or, without hashes,
if every later prompt is at least as long as the earlier one with its answer, prompts are whole. The blocks of
a prompt that was put together so get hashes of their own after those that it shares with the turn before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from planner.traffic.columns import Columns
from planner.traffic.formats.fields import Fields
from planner.traffic.formats.special import Blocks, Special, objects
from planner.traffic.formats.turns import Turn, Wait, arrivals_s, check_number, fill
from planner.traffic.hygiene import BLOCK_SIZES
from planner.traffic.layout import Layout
from planner.traffic.model import MAX_TOKENS, Finding
from planner.traffic.options import ImportOptions
from planner.traffic.problems import Problems


def read_sessions(
    blocks: Blocks, layout: Layout, columns: Columns, problems: Problems, options: ImportOptions
) -> Special:
    turns: list[Turn] = []
    before: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for line, row in objects(blocks, columns, problems):
        columns.count_rows(1, line)
        check_number(columns.rows, columns.limits)
        fields = Fields(line, row, problems)
        turn = Turn(
            line, fields.count("input_length", "input_tokens"), fields.count("output_length", "output_tokens")
        )
        turn.at_s = fields.seconds("timestamp", 1e-3)
        delay_s = fields.seconds("delay", 1e-3, default=0.0)
        turn.hashes = fields.hashes()
        turn.request_class = fields.name("model")
        session = fields.name("session_id")
        earlier = before.get(session) if session is not None else None
        if turn.at_s is None and earlier is None and fields.sound:
            fields.wrong("timestamp", "the first turn of a session needs a time")
        if not fields.sound:
            continue
        if earlier is not None:
            pairs.append((earlier, len(turns)))
            if turn.at_s is None:
                turn.waits.append(Wait(earlier, completion=True, delay_s=delay_s or 0.0))
        if session is not None:
            before[session] = len(turns)
        turns.append(turn)
    problems.check()
    findings, recipe = _prompts(turns, pairs, options, problems)
    times, assumed = arrivals_s(turns, options, problems)
    fill(turns, times, columns)
    kind = Layout(
        "mooncake_sessions", "input_length", "output_length", "timestamp", "s", json=True,
        header_line=layout.header_line,
    )  # fmt: skip
    service = {"turn_first_token_s": options.turn_first_token_s, "turn_token_s": options.turn_token_s}
    return Special(kind, (*findings, *assumed), {**recipe, **(service if assumed else {})})


def _prompts(
    turns: list[Turn], pairs: list[tuple[int, int]], options: ImportOptions, problems: Problems
) -> tuple[list[Finding], dict[str, str]]:
    """Makes the prompts whole where the file has only what each turn adds."""
    if not pairs:
        return [], {}
    kind = options.session_prompts or ("whole" if _are_whole(turns, pairs) else "added")
    said = (
        ""
        if options.session_prompts
        else " The file's hash_ids and lengths decided it; session_prompts overrules."
    )
    if kind == "whole":
        message = f"{len(pairs):,} later turns of sessions state their whole prompt.{said}"
        return [Finding("session_prompts", message, len(pairs))], {"session_prompts": kind}
    block = _block_tokens(turns)
    for earlier, later in pairs:  # in the file's order: the earlier one is whole by then
        first, turn = turns[earlier], turns[later]
        prompt = first.prompt + first.output + turn.prompt
        if prompt > MAX_TOKENS:
            problems.add(turn.line, "input_length", f"the session is longer than {MAX_TOKENS:,} tokens")
            problems.check()
        if turn.hashes is not None and first.hashes is not None and block:
            turn.hashes = _extended(first, turn.hashes, prompt, block)
        elif turn.hashes is not None or first.hashes is not None:
            turn.hashes = None
        turn.prompt = prompt
    message = (
        f"{len(pairs):,} later turns of sessions state what they add to the conversation: prompt and answer of "
        f"the turns before were put before it.{said}"
    )
    return [Finding("session_prompts", message, len(pairs))], {"session_prompts": kind}


def _are_whole(turns: list[Turn], pairs: list[tuple[int, int]]) -> bool:
    hashed = [(turns[a].hashes, turns[b].hashes) for a, b in pairs if turns[a].hashes and turns[b].hashes]
    if hashed:
        # The last block of the earlier prompt may have been filled up since: it need not be the same.
        same = sum(later[: len(first) - 1] == first[:-1] and (len(first) > 1 or later[0] == first[0])
                   for first, later in hashed if first and later)  # fmt: skip
        return same * 2 > len(hashed)
    return all(turns[b].prompt >= turns[a].prompt + turns[a].output for a, b in pairs)


def _block_tokens(turns: list[Turn]) -> int | None:
    hashed = [(turn.prompt, len(turn.hashes)) for turn in turns if turn.hashes is not None]
    fits: Callable[[int], bool] = lambda size: all(-(-prompt // size) == count for prompt, count in hashed)  # noqa: E731
    return next((size for size in BLOCK_SIZES if fits(size)), None) if hashed else None


def _extended(first: Turn, added: list[int], prompt: int, block: int) -> list[int]:
    """Hashes of the whole prompt: the full blocks it shares with the turn before, then its own."""
    shared = (first.hashes or [])[: first.prompt // block]
    missing = -(-prompt // block) - len(shared)
    seed = repr((first.hashes, first.prompt, first.output, added, prompt)).encode()
    return shared + [
        int.from_bytes(hashlib.blake2b(seed + index.to_bytes(4, "little"), digest_size=8).digest(), "little")
        for index in range(missing)
    ]
