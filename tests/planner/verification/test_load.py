"""The load generator against servers that behave and that do not: what each request saw, and what is doubted."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
from aiohttp import web

from calibration.sources.outbound import Guard, OutboundRefused
from planner.traffic import PrefixHashes, Traffic
from planner.verification.load import Endpoint, run
from planner.verification.measured import measure
from planner.verification.prompts import prompt_ids
from planner.verification.stream import Answer
from tests.ops.services import PATIENCE_S
from tests.planner.verification.servers import DONE, chat, event, honest, serving, stream, usage_only

LOOPBACK = Guard.of(["127.0.0.0/8"])


def traffic(count: int = 6, spacing_s: float = 0.01, output: int = 4) -> Traffic:
    return Traffic(
        arrival_s=np.arange(count) * spacing_s, prompt_tokens=np.full(count, 5), output_tokens=np.full(count, output),
        source="test", format="synthetic",
    )  # fmt: skip


def endpoint(url: str, **more) -> Endpoint:
    return Endpoint(url, "tiny", 32_000, **more)


def test_an_honest_server_is_measured_token_by_token():
    seen = []

    async def handler(request, body):
        seen.append(body)
        return await stream(request, honest(body), 0.002)

    with serving(handler) as url:
        answers = run(endpoint(url, extra={"min_tokens": 4}), traffic(), LOOPBACK)
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    assert [answer.chunk_tokens for answer in answers] == [[1, 1, 1, 1]] * 6
    assert {answer.usage_prompt_tokens for answer in answers} == {5}
    assert all(body["max_tokens"] == 4 and body["ignore_eos"] and body["min_tokens"] == 4 for body in seen)
    assert all(answer.sent_s >= answer.due_s for answer in answers)
    found = measure(answers)
    assert (found.requests, found.answered, found.errors) == (6, 6, {})
    assert len(found.values_s["itl"]) == 6 * 3
    assert found.offered_per_s == pytest.approx(100.0)
    report = found.to_dict()
    assert report["metrics"]["ttft"]["samples"] == 6


def test_requests_leave_on_time_though_no_answer_has_come():
    arrived = []
    all_here = asyncio.Event()

    async def handler(request, body):
        arrived.append(1)
        if len(arrived) == 6:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), PATIENCE_S)  # a closed loop would never get here
        return await stream(request, honest(body))

    with serving(handler) as url:
        answers = run(endpoint(url), traffic(), LOOPBACK)
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([event("x", 1), b"data: {broken\n\n"], "a chunk is not JSON"),
        ([event("x", 1), b"data: [1]\n\n"], "a chunk is not a JSON object"),
        ([event("x", 1)], "the stream broke off"),
        ([b'data: {"error": {"message": "out of memory"}}\n\n'], "the server says: out of memory"),
        ([b"data: " + b"x" * (1 << 21) + b"\n\n"], "a chunk is too long"),
        ([DONE], "no token came"),
    ],
)
def test_a_broken_stream_is_an_error_of_that_request(chunks, error):
    turn = itertools.count()

    async def handler(request, body):
        return await stream(request, chunks if next(turn) % 2 else honest(body))

    with serving(handler) as url:
        found = measure(run(endpoint(url), traffic(), LOOPBACK))
    assert found.errors == {error: 3}
    assert found.answered == 3


def test_refusals_are_counted_by_their_words_and_not_retried():
    turn = itertools.count()

    async def handler(request, body):
        i = next(turn)
        if i % 3 == 0:
            return web.json_response({"error": {"message": "slow down"}}, status=429)
        if i % 3 == 1:
            return web.Response(text="<h1>no</h1>", status=500)
        return web.json_response({"choices": []})

    with serving(handler) as url:
        found = measure(run(endpoint(url), traffic(), LOOPBACK))
    assert next(turn) == 6
    assert found.errors == {
        "HTTP 429: slow down": 2,
        "HTTP 500: <h1>no</h1>": 2,
        "answered with application/json, not with a stream": 2,
    }
    assert found.answered == 0
    assert found.percentile_s("ttft", 50) is None


def test_a_server_that_falls_silent_is_given_up():
    async def handler(request, body):
        reply = await stream(request, honest(body)[:2])
        await asyncio.sleep(5)
        return reply

    with serving(handler) as url:
        found = measure(run(endpoint(url, silence_s=0.3), traffic(2), LOOPBACK))
    assert found.errors == {"silent for 0.3 s": 2}


@pytest.mark.parametrize("running", [True, False])
def test_chunks_of_several_tokens_cost_the_itl_and_not_the_tpot(running):
    async def handler(request, body):
        counts = [4, 8] if running else [None, None]
        chunks = [event("four", counts[0]), event("more", counts[1]), event("", 8, "stop"), DONE]
        return await stream(request, chunks, 0.005)

    with serving(handler) as url:
        found = measure(run(endpoint(url), traffic(output=8), LOOPBACK))
    assert "itl" not in found.values_s
    assert len(found.values_s["tpot"]) == 6
    assert any("several tokens" in doubt for doubt in found.doubts)


def test_lies_in_the_count_of_tokens_are_seen():
    async def handler(request, body):
        return await stream(request, [event("x")] * 8 + [event("", 2, "stop"), DONE])

    with serving(handler) as url:
        found = measure(run(endpoint(url), traffic(output=8), LOOPBACK))
    assert any("fewer tokens than they had chunks" in doubt for doubt in found.doubts)
    assert any("other lengths" in doubt for doubt in found.doubts)


def test_a_chat_behind_it_is_timed_from_its_first_token_and_not_from_its_role():
    async def handler(request, body):
        asked = body["max_tokens"]
        thoughts = [chat(i + 1, reasoning_content="hm") for i in range(asked - 1)]
        words = [chat(asked, content="a"), chat(asked, "stop"), usage_only(asked), DONE]
        return await stream(
            request, [chat(0, role="assistant", content=""), chat(0, content=""), *thoughts, *words]
        )

    with serving(handler) as url:
        answers = run(endpoint(url), traffic(output=4), LOOPBACK)
    assert [answer.chunk_tokens for answer in answers] == [[1, 1, 1, 1]] * 6
    assert len(measure(answers).values_s["itl"]) == 6 * 3


def test_a_count_without_a_token_is_no_answer():
    async def handler(request, body):
        return await stream(request, [usage_only(4), DONE])

    with serving(handler) as url:
        found = measure(run(endpoint(url), traffic(), LOOPBACK))
    assert found.errors == {"tokens were counted, and no chunk brought any": 6}
    assert len(found.values_s["ttft"]) == 0


def test_a_single_token_that_shows_no_text_is_an_answer():
    async def handler(request, body):
        return await stream(request, [event("", 1, "length"), DONE])

    with serving(handler) as url:
        found = measure(run(endpoint(url), traffic(output=1), LOOPBACK))
    assert (found.answered, found.errors) == (6, {})


def test_no_count_at_all_is_said():
    async def handler(request, body):
        return await stream(request, [event("x")] * 4 + [DONE])

    with serving(handler) as url:
        found = measure(run(endpoint(url), traffic(), LOOPBACK))
    assert [doubt for doubt in found.doubts if "client" not in doubt] == [
        "6 answers came without a count of tokens: every chunk is taken for one token."
    ]
    assert len(found.values_s["itl"]) == 18


def test_a_stop_leaves_what_was_measured():
    done = []

    async def handler(request, body):
        return await stream(request, honest(body))

    with serving(handler) as url:
        answers = run(
            endpoint(url), traffic(count=50, spacing_s=0.1), LOOPBACK,
            on_progress=lambda finished, total: done.append((finished, total)),
            should_stop=lambda: bool(done) and done[-1][0] >= 2,
        )  # fmt: skip
    found = measure(answers)
    assert 2 <= found.answered < 50
    assert set(found.errors) <= {"not sent", "stopped"}


def test_nobody_there_is_said_per_request():
    async def handler(request, body):
        return web.Response()

    with serving(handler) as url:
        pass
    found = measure(run(endpoint(url), traffic(2), LOOPBACK))
    assert found.errors == {"no connection": 2}


def test_an_address_that_may_not_be_asked_is_refused_before_anything_is_sent():
    with pytest.raises(OutboundRefused, match=r"127\.0\.0\.1"):
        run(endpoint("http://127.0.0.1:1"), traffic(), Guard())


def test_the_token_goes_where_it_belongs_and_nowhere_else():
    seen = []

    async def handler(request, body):
        seen.append(request.headers.get("Authorization"))
        raise web.HTTPFound("http://127.0.0.1:1/elsewhere")

    with serving(handler) as url:
        given = endpoint(url, token="secret")
        found = measure(run(given, traffic(1), LOOPBACK))
    assert seen == ["Bearer secret"]
    assert list(found.errors) == ["HTTP 302: 302: Found"]
    assert "secret" not in repr(given)


def test_prompts_share_what_the_hashes_say_and_nothing_else():
    hashes = PrefixHashes(np.array([11, 12, 11, 13], dtype=np.uint64), np.array([0, 2, 4]), block_tokens=8)
    both = Traffic(
        arrival_s=np.zeros(2), prompt_tokens=np.array([20, 15]), output_tokens=np.ones(2, dtype=np.int64),
        source="test", format="synthetic", prefix_hashes=hashes,
    )  # fmt: skip
    first, second = prompt_ids(both, 0, 32_000), prompt_ids(both, 1, 32_000)
    assert (len(first), len(second)) == (20, 15)
    assert first[:8] == second[:8]
    assert first[8:15] != second[8:15]
    assert first == prompt_ids(both, 0, 32_000)
    assert min(first + second) >= 1_000
    with pytest.raises(ValueError, match="vocabulary"):
        prompt_ids(both, 0, 10)


@pytest.mark.parametrize(("serves_s", "behind"), [(0.0, False), (0.08, True)])
def test_a_short_run_does_not_look_as_if_the_server_had_fallen_behind(serves_s, behind):
    """40 requests, 20 a second, each answered half a second after it came; or one after the other, 0.08 s each."""
    answers, free_s = [], 0.0
    for i in range(40):
        due_s = 0.05 * i
        free_s = max(free_s, due_s) + serves_s
        end_s = free_s + 0.5
        answers.append(
            Answer(i, due_s, 2, sent_s=due_s, done_s=end_s, status=200, chunk_s=[end_s - 0.1, end_s],
                   chunk_tokens=[1, 1], usage_tokens=2)
        )  # fmt: skip
    found = measure(answers)
    assert found.offered_per_s == pytest.approx(20.0)
    assert found.achieved_per_s == pytest.approx(12.5 if behind else 20.0)
