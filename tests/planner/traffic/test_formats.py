"""Sessions, workflows, events and distributions: what they become, and what is said about it."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from planner.traffic import Limits, TooLarge, Traffic, TrafficError, read_traffic


def read(rows: list[dict[str, Any]] | str, **options: Any) -> Traffic:
    text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
    return read_traffic(io.BytesIO(text.encode()), **options)


def refusal(rows: list[dict[str, Any]] | str, **options: Any) -> TrafficError:
    with pytest.raises(TrafficError) as caught:
        read(rows, **options)
    return caught.value


def message(traffic: Traffic, code: str) -> str:
    return next(finding.message for finding in traffic.warnings if finding.code == code)


def turn(session: str, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"session_id": session, "input_length": prompt, "output_length": output, **more}


# Sessions --------------------------------------------------------------------------------------------------------


def test_a_later_turn_follows_the_end_of_the_one_before_and_sends_the_conversation() -> None:
    rows = [turn("a", 100, 10, timestamp=0), turn("b", 50, 5, timestamp=100), turn("a", 30, 20, delay=2000),
            turn("a", 7, 1, delay=500)]  # fmt: skip
    traffic = read(rows, turn_first_token_s=1.0, turn_token_s=0.1)
    # a2: 0 + (1 + 10 x 0.1) + 2; a3: 4 + (1 + 20 x 0.1) + 0.5
    assert traffic.arrival_s.tolist() == pytest.approx([0, 0.1, 4.0, 7.5])
    assert traffic.prompt_tokens.tolist() == [100, 50, 100 + 10 + 30, 140 + 20 + 7]
    assert "1 s and 0.1 s for each" in message(traffic, "turn_service_assumed")
    assert traffic.recipe["turn_first_token_s"] == 1.0
    assert traffic.recipe["session_prompts"] == "added"


def test_whole_prompts_are_known_by_their_hashes_or_their_lengths() -> None:
    hashed = [
        turn("a", 1000, 10, timestamp=0, hash_ids=[1, 2]),
        turn("a", 1100, 5, delay=1, hash_ids=[1, 2, 3]),
    ]
    assert read(hashed).prompt_tokens.tolist() == [1000, 1100]
    grown = [turn("a", 100, 10, timestamp=0), turn("a", 110, 5, delay=1)]
    assert read(grown).prompt_tokens.tolist() == [100, 110]
    assert read(grown, session_prompts="added").prompt_tokens.tolist() == [100, 220]


def test_blocks_of_the_conversation_are_shared_as_far_as_they_are_full() -> None:
    rows = [turn("a", 1100, 10, timestamp=0, hash_ids=[1, 2, 3]), turn("a", 600, 5, delay=1, hash_ids=[8, 9])]
    traffic = read(rows)
    hashes = traffic.prefix_hashes
    assert hashes is not None
    assert hashes.block_tokens == 512
    assert np.diff(hashes.offsets).tolist() == [3, 4]  # ceil(1710 / 512)
    assert hashes.flat[3:5].tolist() == [1, 2]  # 1,100 tokens fill two blocks
    assert len(set(hashes.flat.tolist())) == 5
    other = [
        turn("c", 1100, 10, timestamp=0, hash_ids=[1, 2, 3]),
        turn("c", 600, 5, delay=1, hash_ids=[8, 9]),
    ]
    same = read([*rows, *other]).prefix_hashes
    assert same is not None
    assert np.diff(same.offsets).tolist() == [3, 3, 4, 4]
    assert same.flat[6:10].tolist() == same.flat[10:].tolist(), "the same conversation has the same blocks"


def test_a_time_of_its_own_goes_before_the_delay() -> None:
    traffic = read([turn("a", 16, 4, timestamp=0), turn("a", 8, 4, timestamp=10, delay=5)])
    assert traffic.arrival_s.tolist() == [0.0, 0.01]
    assert "turn_service_assumed" not in [finding.code for finding in traffic.warnings]


@pytest.mark.parametrize(
    ("rows", "line", "column", "words"),
    [
        ([turn("a", 1, 1, delay=5)], 1, "timestamp", "first turn"),
        ([turn("a", 1, 1, timestamp=0), turn("a", 1, 1, delay=-5)], 2, "delay", "negative"),
        ([turn("a", 1, 1, timestamp=0), turn("a", 1.5, 1, delay=5)], 2, "input_length", "whole number"),
        ([turn("a", 1, 1, timestamp=0, delay=0), turn([1], 1, 1, timestamp=1)], 2, "session_id", "neither text"),
        ([turn("a", 1, 1, timestamp=0, delay=0), {"timestamp": 5}], 2, "input_length", "missing"),
    ],
)  # fmt: skip
def test_turns_that_are_wrong_are_named(rows: Any, line: int, column: str, words: str) -> None:
    problem = refusal(rows).errors[0]
    assert (problem.line, problem.column) == (line, column)
    assert words in problem.message


def test_sessions_that_only_show_late_are_named_and_read_when_told() -> None:
    rows = [turn(str(i), 5, 5, timestamp=i) for i in range(30)] + [turn("1", 5, 5, delay=9)]
    error = refusal(rows)
    assert (error.errors[0].line, error.errors[0].column) == (31, "delay")
    assert read(rows, format="mooncake_sessions").requests == 31


def test_a_cap_on_turns() -> None:
    with pytest.raises(TooLarge):
        read([turn("a", 1, 1, timestamp=i, delay=0) for i in range(5)], limits=Limits(turns=4))


# Workflows -------------------------------------------------------------------------------------------------------

HEADER = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4}


def node(name: str, *waits: tuple[str, str, int], **more: Any) -> dict[str, Any]:
    dependencies = [{"request_id": other, "trigger": trigger, "delay_ms": ms} for other, trigger, ms in waits]
    base = {"request_id": name, "input_length": 4, "output_length": 10, "dependencies": dependencies}
    return {**base, **({} if waits else {"not_before_ms": 0}), **more}


def test_a_workflow_waits_for_dispatch_or_completion_in_any_order_of_rows() -> None:
    rows = [HEADER, node("join", ("a", "completion", 100), ("b", "completion", 0)), node("a"),
            node("b", ("a", "dispatch", 1000))]  # fmt: skip
    traffic = read(rows, turn_first_token_s=0.5, turn_token_s=0.05)
    assert traffic.arrival_s.tolist() == pytest.approx([0, 1, 2])  # join: max(0 + 1 + 0.1, 1 + 1 + 0)
    assert traffic.format == "mooncake_agentic"


def test_the_older_form_with_wait_for() -> None:
    rows = [{"request_id": "a", "timestamp": 50, "input_length": 4, "output_length": 10, "wait_for": []},
            {"request_id": "b", "input_length": 4, "output_length": 1, "wait_for": ["a"], "delay": 100,
             "tool_wait_ms": 200}]  # fmt: skip
    assert read(rows, turn_first_token_s=1, turn_token_s=0).arrival_s.tolist() == pytest.approx([0, 1.3])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([node("a", ("b", "completion", 0)), node("b", ("a", "dispatch", 0))], "for itself"),
        ([node("a", ("zz", "completion", 0))], 'no request "zz"'),
        ([node("a"), node("a")], "on line 2 already"),
        ([node("a", not_before_ms=None)], "needs a time"),
        ([node("a"), node("b", ("a", "later", 0))], "neither dispatch nor completion"),
    ],
)
def test_workflows_that_cannot_be_are_refused(rows: Any, words: str) -> None:
    assert words in str(refusal([HEADER, *rows]))


# Events ------------------------------------------------------------------------------------------------------------


def event(received_ms: float, prompt: int, output: int, hashes: list[int], block: int = 4) -> dict[str, Any]:
    replay = {"trace_block_size": block, "input_length": prompt, "input_sequence_hashes": hashes}
    request = {"output_tokens": output, "request_received_ms": received_ms, "replay": replay}
    return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}


def test_events_give_recorded_arrivals_and_their_block_size() -> None:
    rows = [{"event_type": "request_payload"}, event(1_795_000_000_123.5, 6, 2, [1, 2]),
            {"event_type": "tool_end", "tool": {}}, event(1_795_000_000_223.75, 4, 3, [1])]  # fmt: skip
    traffic = read(rows)
    assert traffic.arrival_s.tolist() == [0.0, 0.10025]
    assert traffic.prefix_hashes is not None
    assert traffic.prefix_hashes.block_tokens == 4
    assert traffic.rows_read == 2
    assert '"tool_end" (1)' in message(traffic, "events_not_read")


def test_events_that_are_wrong_are_named() -> None:
    error = refusal([event(0, 4, 2, [1]), {"event_type": "request_end", "request": {"output_tokens": 1}},
                     event(0, 4, -2, [1])])  # fmt: skip
    assert [problem.line for problem in error.errors] == [2, 2, 3]
    assert "trace_block_size" in str(refusal([event(0, 4, 2, [1]), event(1, 4, 2, [1], block=8)]))


def test_an_agents_session_is_a_chain_of_requests() -> None:
    row = {"num_turns": 1, "input_prompt_length": 16, "assistant_response_length": [4],
           "tool_call_output_length": [8], "tool_call_latency": [0.25],
           "final_assistant_response_length": 5}  # fmt: skip
    assert refusal([row]).field == "rate_per_s"
    traffic = read([row, row], rate_per_s=0.1, interarrival_cv=0, turn_first_token_s=1, turn_token_s=0)
    assert traffic.arrival_s.tolist() == pytest.approx([0, 1.25, 10, 11.25])
    assert traffic.prompt_tokens.tolist() == [16, 28, 16, 28]
    assert traffic.output_tokens.tolist() == [4, 5, 4, 5]
    assert "2 turns, but the lists have 1" in str(refusal([{**row, "num_turns": 2}], rate_per_s=1.0))


# Distributions -----------------------------------------------------------------------------------------------------

HISTOGRAM = "prompt_tokens_le,output_tokens_le,count\n100,10,30\n100,50,20\n400,10,0\n400,50,50\n"


def test_a_histogram_is_drawn_cell_by_cell() -> None:
    assert refusal(HISTOGRAM).field == "rate_per_s"
    traffic = read(HISTOGRAM, rate_per_s=2.0, seed=3)
    prompts, outputs = traffic.prompt_tokens, traffic.output_tokens
    assert traffic.requests == 100
    short, brief = prompts <= 100, outputs <= 10
    assert [int((short & brief).sum()), int((short & ~brief).sum()), int((~short & brief).sum())] == [
        30,
        20,
        0,
    ]
    assert prompts.max() <= 400
    assert prompts[~short].min() > 100
    assert len(set(prompts.tolist())) > 60, "uniform inside, not at the edges"
    assert "equally likely" in message(traffic, "distribution")
    again = read(HISTOGRAM, rate_per_s=2.0, seed=3)
    assert again.prompt_tokens.tolist() == prompts.tolist()
    assert read(HISTOGRAM, rate_per_s=2.0, requests=7).requests == 7


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        ("inf,10,3\n", 2, "upper end"), ("100,10,3\n100,10,4\n", 3, "already"), ("100,x,3\n", 2, "not a number"),
        ("100,10,-3\n", 2, "not a whole number"), ("100,10,nan\n", 2, "not a whole number"), ("0,10,1\n", 2, "1 to"),
        ("100,10\n", 2, "2 fields"),
    ],
)  # fmt: skip
def test_cells_that_make_no_sense_are_named(rows: str, line: int, words: str) -> None:
    error = refusal("prompt_tokens_le,output_tokens_le,count\n" + rows, rate_per_s=1.0)
    assert error.errors[0].line == line
    assert words in error.errors[0].message


def test_cumulative_buckets_are_suspected_and_endless_empty_ones_skipped() -> None:
    traffic = read(
        "prompt_tokens_le,output_tokens_le,count\n1,1,1\n1,2,2\n2,1,2\n2,2,4\n+Inf,2,0\n", rate_per_s=1.0
    )
    assert "Prometheus" in message(traffic, "cumulative_counts")


@pytest.mark.parametrize(
    "table",
    [
        "percentile,prompt_tokens,output_tokens\n0,10,1\n50,100,20\n100,1000,50\n",
        "quantile;input_tokens;output_tokens\n0;10;1\n0.5;100;20\n1;1000;50\n",
        "metric,p0,p50,p100\nprompt_tokens,10,100,1000\noutput_tokens,1,20,50\n",
    ],
)
def test_percentiles_are_drawn_along_their_curve(table: str) -> None:
    assert refusal(table).field == "rate_per_s"
    traffic = read(table, rate_per_s=5.0, requests=4000)
    assert np.percentile(traffic.prompt_tokens, [25, 50, 75]).tolist() == pytest.approx(
        [55, 100, 550], rel=0.01
    )
    assert np.percentile(traffic.output_tokens, [50, 100]).tolist() == pytest.approx([20, 50], rel=0.03)
    assert abs(np.corrcoef(traffic.prompt_tokens, traffic.output_tokens)[0, 1]) < 0.05
    assert "independently" in message(traffic, "distribution")


def test_a_table_of_percentiles_without_an_end_has_no_tail_and_says_so() -> None:
    traffic = read("percentile,prompt_tokens,output_tokens\n50,100,20\n99,900,90\n", rate_per_s=1.0)
    assert traffic.requests == 10_000
    assert traffic.prompt_tokens.max() == 900
    assert message(traffic, "no_tail")


@pytest.mark.parametrize(
    "rows",
    [
        "50,100,20\n",
        "50,100,20\n90,50,30\n",
        "50,100,20\n50,100,20\n",
        "101,1,1\n50,1,1\n",
        "p50,x,1\np90,5,2\n",
    ],
)
def test_percentiles_that_make_no_sense_are_refused(rows: str) -> None:
    assert refusal("percentile,prompt_tokens,output_tokens\n" + rows, rate_per_s=1.0).errors
