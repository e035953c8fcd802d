"""An open-loop load on an OpenAI-compatible endpoint: requests leave on time, however late the answers are.

A closed loop waits for answers before it sends more, so a slow server gets less load and its tail never shows. Here
each request leaves at its own time; how late the client itself was (its lag) is recorded with every request, because
a client that cannot keep up measures itself. Requests ask for exactly the traffic's tokens (`ignore_eos`), as token
ids, streamed, with the server's own count of tokens. Nothing is retried: an error is a result. Everything goes
through the guarded client (calibration.sources.outbound). Seconds since the run began.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from calibration.sources import outbound
from planner.traffic import Traffic
from planner.verification.prompts import prompt_ids
from planner.verification.stream import Answer, BadStream, read

MOST_OPEN: Final = 10_000
POLL_S: Final = 0.2

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base_url` ends before /v1 or with it; `model` as the server calls it; `vocabulary` of its tokenizer.

    `token`: for an Authorization header. `silence_s`: an answer that says nothing for so long has failed.
    `extra` joins every request's body.
    """

    base_url: str
    model: str
    vocabulary: int
    token: str = field(default="", repr=False)
    silence_s: float = 120.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def completions_url(self) -> str:
        base = self.base_url.rstrip("/")
        return f"{base}/completions" if base.endswith("/v1") else f"{base}/v1/completions"


def run(
    endpoint: Endpoint,
    traffic: Traffic,
    guard: outbound.Guard,
    *,
    seed: int = 0,
    on_progress: OnProgress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Answer]:
    """Send all of `traffic`; the answers in its order, also those that failed or, once stopped, were never sent.

    `on_progress` and `should_stop` are called in the caller's thread, every POLL_S; the sending has one of its own, so
    that what they do (a database, say) makes no request late.
    Raises outbound.OutboundError before anything is sent if the endpoint may not or cannot be asked.
    """
    target = outbound.check(endpoint.completions_url, guard)
    answers = [
        Answer(i, float(due_s), int(asked))
        for i, (due_s, asked) in enumerate(zip(traffic.arrival_s, traffic.output_tokens, strict=True))
    ]
    watch = _Watch()
    with ThreadPoolExecutor(1, "load") as pool:
        sending = pool.submit(
            lambda: asyncio.run(_run(endpoint, traffic, answers, target, guard, seed, watch))
        )
        while not wait({sending}, timeout=POLL_S).done:
            on_progress(watch.done, len(answers))
            if not watch.stopping and should_stop():
                watch.stopping = True
        sending.result()
    on_progress(len(answers), len(answers))
    for answer in answers:
        if answer.done_s < 0 and not answer.error:
            answer.error = "stopped" if answer.sent_s >= 0 else "not sent"
    return answers


@dataclass(slots=True)
class _Watch:
    """What the two threads tell each other: how many requests have ended, and whether to stop."""

    done: int = 0
    stopping: bool = False


@dataclass(slots=True)
class _Run:
    endpoint: Endpoint
    client: aiohttp.ClientSession
    began: float
    watch: _Watch

    def now(self) -> float:
        return time.monotonic() - self.began


async def _run(
    endpoint: Endpoint,
    traffic: Traffic,
    answers: list[Answer],
    target: outbound.Target,
    guard: outbound.Guard,
    seed: int,
    watch: _Watch,
) -> None:
    patient = outbound.Guard(
        guard.allowed, guard.connect_timeout_s, endpoint.silence_s, guard.max_reply_bytes
    )
    async with outbound.session(target, patient, connections=0, streaming=True) as client:
        run = _Run(endpoint, client, time.monotonic(), watch)
        sending = asyncio.create_task(_send_all(run, traffic, answers, seed))
        while not sending.done():
            await asyncio.wait({sending}, timeout=POLL_S)
            if watch.stopping:
                sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        if not sending.cancelled():
            sending.result()


async def _send_all(run: _Run, traffic: Traffic, answers: list[Answer], seed: int) -> None:
    async with asyncio.TaskGroup() as group:
        open_tasks: set[asyncio.Task[None]] = set()
        for answer in answers:
            body = _body(
                run.endpoint, traffic, answer, seed
            )  # before it is due: making it is not its latency
            await asyncio.sleep(max(0.0, answer.due_s - run.now()))
            if len(open_tasks) >= MOST_OPEN:
                answer.error = f"not sent: {MOST_OPEN:,} requests were open"
                run.watch.done += 1
                continue
            task = group.create_task(_send(run, answer, body))
            open_tasks.add(task)
            task.add_done_callback(open_tasks.discard)


def _body(endpoint: Endpoint, traffic: Traffic, answer: Answer, seed: int) -> bytes:
    body = {
        "model": endpoint.model,
        "prompt": prompt_ids(traffic, answer.index, endpoint.vocabulary, seed),
        "max_tokens": answer.asked_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **endpoint.extra,
    }
    return json.dumps(body, separators=(",", ":")).encode()


async def _send(run: _Run, answer: Answer, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if run.endpoint.token:
        headers["Authorization"] = f"Bearer {run.endpoint.token}"
    answer.sent_s = run.now()
    try:
        async with run.client.post(
            run.endpoint.completions_url, data=body, headers=headers, allow_redirects=False
        ) as reply:
            answer.status = reply.status
            if reply.status != 200:
                answer.error = f"HTTP {reply.status}: {_reason(await reply.content.read(2_000))}"
            elif not reply.content_type.startswith("text/event-stream"):
                answer.error = f"answered with {reply.content_type}, not with a stream"
            else:
                await read(_lines(reply.content), answer, run.now)
    except BadStream as error:
        answer.error = str(error)
    except TimeoutError:
        answer.error = f"silent for {run.endpoint.silence_s:g} s"
    except aiohttp.ClientConnectorError:
        answer.error = "no connection"
    except (aiohttp.ClientError, OSError):
        answer.error = "the connection broke"
    finally:
        run.watch.done += 1


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    try:
        while line := await content.readuntil(b"\n"):
            yield line
    except LineTooLong:  # half a MiB: eight times a response's read buffer
        raise BadStream("a chunk is too long") from None


def _reason(body: bytes) -> str:
    """The server's own words, short."""
    try:
        said = json.loads(body)
        error = said.get("error", said.get("detail", said)) if isinstance(said, dict) else said
        text = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        text = body.decode(errors="replace")
    return " ".join(str(text).split())[:200] or "no reason given"
