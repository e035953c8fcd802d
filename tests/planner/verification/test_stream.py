"""Which chunk of a stream is the first token, and which the last: fed by hand, with a clock that counts the events."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest

from planner.verification.stream import Answer, BadStream, read
from tests.planner.verification.servers import DONE, chat, event, usage_only


def seen(*events: bytes) -> Answer:
    """What the events are read as; the first comes at second 1, the second at 2."""
    answer, clock = Answer(0, 0.0, 8), itertools.count(1.0)

    async def lines() -> AsyncIterator[bytes]:
        for line in b"".join((*events, DONE)).splitlines(keepends=True):
            yield line

    asyncio.run(read(lines(), answer, lambda: float(next(clock))))
    return answer


ROLE = chat(role="assistant", content="")


@pytest.mark.parametrize(
    ("events", "chunk_s", "tokens"),
    [
        # What brings a token: anything to read, of any channel.
        ([event("a"), event("b")], [1, 2], [1, 1]),
        ([chat(content="a"), chat(content="b")], [1, 2], [1, 1]),
        ([chat(reasoning_content="hm"), chat(content="a")], [1, 2], [1, 1]),
        ([chat(reasoning="hm"), chat(content="a")], [1, 2], [1, 1]),
        ([chat(tool_calls=[{"index": 0}]), chat(refusal="no")], [1, 2], [1, 1]),
        # A role says whose turn it is, with or without a count of nothing.
        ([ROLE, chat(content="a")], [2], [1]),
        ([chat(0, role="assistant", content=""), chat(1, content="a")], [2], [1]),
        ([chat(role="assistant"), chat(reasoning_content="hm")], [2], [1]),
        ([chat(1, role="assistant", content="a"), chat(2, content="b")], [1, 2], [1, 1]),
        # Half a character: an empty piece, unless a running count says that nothing came (a sign of life).
        ([event(""), event("é")], [1, 2], [1, 1]),
        ([chat(content=""), chat(content="é")], [1, 2], [1, 1]),
        ([event("", 1), event("é", 2)], [1, 2], [1, 1]),
        ([event("", 0), event("é", 1), event("", 1), event("b", 2)], [2, 4], [1, 1]),
        # The end: with a running count it may bring a token that shows nothing; else it only ends.
        ([event("a", 1), event("", 2, "length")], [1, 2], [1, 1]),
        ([event("a", 1), event("", 1, "stop")], [1], [1]),
        ([event("a"), event("b"), event("", 2, "stop")], [1, 2], [1, 1]),
        ([event("four"), event("more"), event("", 8, "stop")], [1, 2], [1, 1]),
        ([event("a"), event("", None, "stop"), usage_only(1)], [1], [1]),
        # The count alone, at the end, is no token.
        ([event("a", 1), event("b", 2), usage_only(2)], [1, 2], [1, 1]),
        ([event("a", 1), usage_only(5)], [1], [1]),
        # All at once, unseen: it came with the end, not with the count that followed.
        ([event("", 1, "length")], [1], [1]),
        ([event("", None, "length"), usage_only(1)], [1], [1]),
        ([ROLE, chat(finish="stop"), usage_only(3)], [2], [3]),
        ([event("all", 8)], [1], [8]),
        # Nothing at all.
        ([event("", 0, "stop")], [], []),
        ([ROLE, chat(finish="stop")], [], []),
        ([usage_only(0)], [], []),
    ],
)  # fmt: skip
def test_what_brings_a_token(events, chunk_s, tokens):
    answer = seen(*events)
    assert (answer.chunk_s, answer.chunk_tokens) == (chunk_s, tokens)
    assert answer.ok == bool(chunk_s)
    assert answer.done_s == (chunk_s[-1] if chunk_s else len(events) + 1)


def test_tokens_that_nothing_brought_are_an_error_and_no_late_first_token():
    with pytest.raises(BadStream, match="no chunk brought any"):
        seen(usage_only(4))
    with pytest.raises(BadStream, match="no chunk brought any"):
        seen(ROLE, usage_only(4))


@pytest.mark.parametrize("broken", ["x", 1, None, [], ["x"], {"text": 3}])
def test_choices_of_any_kind_are_no_defect_of_ours(broken):
    body = json.dumps({"choices": broken, "usage": "none"}).encode()
    assert seen(b"data: " + body + b"\n\n", event("a")).chunk_s[-1] == 2
