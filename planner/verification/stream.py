"""One streamed answer of /v1/completions: when each chunk came, how many tokens it brought, how it ended.

Server-sent events: lines "data: {json}" and at last "data: [DONE]". A chunk may carry several tokens, or none. How many
is known only from a running `usage` (vLLM's continuous_usage_stats); without it a chunk with text counts as one, and
the final usage says whether that was right. Seconds since the run began.

TTFT ends with the first chunk that brings a token, of whatever channel: text, content, reasoning, tool calls, token
ids. What brings one:

  - something to read, always;
  - nothing to read (half a character, a special token), if the running count says so by having risen; where none is
    told, if it is a piece of the answer like any other, empty, before the end;
  - an end without text, if nothing came before it and tokens were counted: the whole answer came at once, unseen.

What does not: a delta that only says whose turn it is (`role`), an end that repeats the count, and a chunk without
choices, whatever it counts, because its tokens were there before it and nobody can tell when. An answer of nothing
else has failed. vLLM's own benchmark takes the first chunk that has choices: on /v1/completions, where no role comes
first, that is the same chunk; and it too fails an answer without any.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

#: Of a chat's delta: what a model writes into.
CHANNELS: Final = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


class BadStream(Exception):
    """What came is no stream of completions."""


@dataclass(slots=True)
class Answer:
    """What one request saw. Times in seconds since the run began; -1 where it never came to that.

    due_s: when it should have been sent; sent_s: when it was. `chunk_s`, `chunk_tokens`: of chunks with tokens.
    `usage_tokens`: output tokens by the server's own count, None if it did not say. `error`: empty if it went well.
    """

    index: int
    due_s: float
    asked_tokens: int
    sent_s: float = -1.0
    done_s: float = -1.0
    status: int = 0
    error: str = ""
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    usage_tokens: int | None = None
    usage_prompt_tokens: int | None = None
    counted: bool = False  # the chunks' tokens are the server's running count
    finish_s: float = -1.0  # when it first said why it ended

    @property
    def ok(self) -> bool:
        return not self.error and bool(self.chunk_s)

    @property
    def tokens(self) -> int:
        """Output tokens: by usage where the server said, else by chunks."""
        return self.usage_tokens if self.usage_tokens is not None else sum(self.chunk_tokens)


async def read(lines: AsyncIterator[bytes], answer: Answer, now: Callable[[], float]) -> None:
    """Note every chunk until the stream says it is done. Raises BadStream for anything else."""
    running = 0
    async for line in lines:
        text = line.strip()
        if not text or text.startswith(b":"):
            continue
        if not text.startswith(b"data:"):
            continue  # event:, id:, retry:
        payload = text[5:].strip()
        if payload == b"[DONE]":
            _end(answer, now())
            return
        event = _event(payload)
        if "error" in event:
            raise BadStream(f"the server says: {_short(event['error'])}")
        running = _chunk(event, answer, running, now())
    raise BadStream("the stream broke off")


def _end(answer: Answer, now_s: float) -> None:
    """Note that the stream is over. BadStream for tokens that were counted and that nothing brought."""
    if not answer.chunk_s and answer.usage_tokens:
        if answer.finish_s < 0:
            raise BadStream("tokens were counted, and no chunk brought any")
        answer.chunk_s.append(answer.finish_s)
        answer.chunk_tokens.append(answer.usage_tokens)
    answer.done_s = answer.chunk_s[-1] if answer.chunk_s else now_s


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        raise BadStream("a chunk is not JSON") from None
    if not isinstance(event, dict):
        raise BadStream("a chunk is not a JSON object")
    return event


def _chunk(event: dict[str, Any], answer: Answer, running: int, at_s: float) -> int:
    """Note one event; the server's running count of output tokens."""
    total = _count(event, "completion_tokens")
    if total is not None:
        answer.usage_tokens = total
        answer.usage_prompt_tokens = _count(event, "prompt_tokens")
    choices = _choices(event)
    if answer.finish_s < 0 and any(choice.get("finish_reason") is not None for choice in choices):
        answer.finish_s = at_s
    if not _brings(choices, answer, running, total):
        return running
    new = total - running if total is not None else 1
    answer.counted |= total is not None
    answer.chunk_s.append(at_s)
    answer.chunk_tokens.append(max(new, 0))
    return total if total is not None else running + 1


def _brings(choices: list[dict[str, Any]], answer: Answer, running: int, total: int | None) -> bool:
    """Whether the event brings a token: see the module's docstring."""
    if any(_shows(choice) for choice in choices):
        return True
    if total is None:
        return any(_is_empty_piece(choice) for choice in choices)
    # The first count of a stream without a running one comes at its end and is of all that was there before.
    return bool(choices) and total > running and (answer.counted or not answer.chunk_s)


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    choices = event.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _delta(choice: dict[str, Any]) -> dict[str, Any]:
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else {}


def _shows(choice: dict[str, Any]) -> bool:
    delta = _delta(choice)
    return bool(
        choice.get("text") or choice.get("token_ids") or any(delta.get(channel) for channel in CHANNELS)
    )


def _is_empty_piece(choice: dict[str, Any]) -> bool:
    """A piece of the answer like any other, with nothing to read in it."""
    delta = _delta(choice)
    pieces = [choice.get("text"), *(delta.get(channel) for channel in CHANNELS)]
    return "" in pieces and "role" not in delta and choice.get("finish_reason") is None


def _count(event: dict[str, Any], name: str) -> int | None:
    usage = event.get("usage")
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else None


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("message", value)
    return str(value)[:200]
