"""A completions endpoint that behaves, or misbehaves, as its test says: on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """The base URL of a server whose /v1/completions is `handler(request, body)`."""
    loop = asyncio.new_event_loop()
    address: list[str] = []
    ready = threading.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request, await request.json())

    async def start() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server = site._server
        assert server is not None
        address.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")  # type: ignore[attr-defined]
        stopping.append(runner)
        ready.set()

    stopping: list[web.AppRunner] = []
    thread = threading.Thread(target=lambda: (loop.run_until_complete(start()), loop.run_forever()))
    thread.start()
    try:
        assert ready.wait(10)
        yield address[0]
    finally:
        asyncio.run_coroutine_threadsafe(stopping[0].cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def event(text: str, usage: int | None = None, finish: str | None = None, prompt: int = 7) -> bytes:
    body: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": prompt, "completion_tokens": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chat(usage: int | None = None, finish: str | None = None, **delta: Any) -> bytes:
    body: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage_only(tokens: int) -> bytes:
    body = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def stream(request: web.Request, chunks: list[bytes], gap_s: float = 0.0) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    for chunk in chunks:
        await reply.write(chunk)
        await asyncio.sleep(gap_s)
    return reply


def honest(body: dict[str, Any]) -> list[bytes]:
    """One token a chunk, with the running count that was asked for."""
    asked = body["max_tokens"]
    return [event("x", usage=i + 1, prompt=len(body["prompt"])) for i in range(asked)] + [DONE]
