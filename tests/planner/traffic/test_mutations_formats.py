"""Damaged sessions, workflows, events, distributions and results: traffic of the same rows, or a clear refusal."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.traffic import Limits, TrafficError, preview, read_traffic, statistics
from planner.traffic.options import ImportOptions

SESSIONS = "".join(
    json.dumps({"session_id": f"s{i % 2}", "input_length": 30 + i, "output_length": 5, "hash_ids": [i],
                **({"timestamp": i} if i < 2 else {"delay": 10})}) + "\n"
    for i in range(5)
)  # fmt: skip
AGENTIC = (
    '{"schema":"dynamo.agentic_mooncake","version":2,"block_size":4}\n'
    '{"request_id":"a","input_length":4,"output_length":2,"hash_ids":[301],"not_before_ms":0,"dependencies":[]}\n'
    '{"request_id":"b","input_length":4,"output_length":2,"dependencies":[{"request_id":"a","trigger":"dispatch",'
    '"delay_ms":5}]}\n'
)
DYNAMO = "".join(
    '{"schema":"dynamo.request.trace.v1","event_type":"request_end","request":{"request_id":"r","output_tokens":2,'
    f'"request_received_ms":{i}000,"replay":{{"trace_block_size":4,"input_length":4,"input_sequence_hashes":[{i}]}}}}}}\n'
    for i in range(3)
)
AGENT = (
    '{"num_turns":1,"input_prompt_length":16,"assistant_response_length":[4],"tool_call_output_length":[8],'
    '"tool_call_latency":[0.01],"final_assistant_response_length":4}\n'
)
HISTOGRAM = "prompt_tokens_le,output_tokens_le,count\n100,10,30\n100,50,20\n400,10,0\n"
PERCENTILES = "percentile,prompt_tokens,output_tokens\n0,10,1\n50,100,20\n100,1000,50\n"
RESULT = (
    '{"request_rate": Infinity, "completed": 5, "total_input_tokens": 9, "total_output_tokens": 8, '
    '"request_throughput": 1.5, "mean_ttft_ms": 0.0}'
)
OPTIONAL = (
    "time,prompt_tokens,output_tokens,max_tokens,priority,status,model\n"
    "0,5,6,7,-1,200,m\n1,5,,,2,500,n\n2,5,6,,,ok,\n"
)
CELLS = ["NaN", "inf", "-1", "1e400", "true", "null", "12.5", "", '"7"', "9" * 30, '"', "\x00", "\r", "\n", "[]", "{}",
         "-0", "é", "}", "]", ",", ":", "1e3"]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    texts = [SESSIONS, AGENTIC, DYNAMO, AGENT, HISTOGRAM, PERCENTILES, RESULT, OPTIONAL]
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(st.sampled_from(CELLS)) + text[start + draw(st.integers(0, 8)) :]
    content = text.encode(
        draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "cp1252"])), errors="replace"
    )
    if draw(st.integers(0, 3)) == 0:
        start = draw(st.integers(0, len(content)))
        content = content[:start] + draw(st.binary(max_size=3)) + content[start + draw(st.integers(0, 3)) :]
    return content


OPTIONS: list[dict[str, Any]] = [{}, {"rate_per_s": 2.0}, {"rate_per_s": 2.0, "max_model_len": 40}]


@settings(max_examples=1_000, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged(), st.sampled_from(OPTIONS))
def test_damage_is_refused_in_words_or_read(content: bytes, options: dict[str, Any]) -> None:
    limits = Limits(rows=1_000)
    looked = preview(io.BytesIO(content), ImportOptions(**options), limits)
    json.dumps(looked.to_dict(), allow_nan=False)
    try:
        traffic = read_traffic(io.BytesIO(content), limits=limits, **options)
    except TrafficError as error:
        assert error.errors
        assert all(problem.message and problem.code and problem.field for problem in error.errors)
        json.dumps(error.to_dict(), allow_nan=False)
        assert looked.problem is not None, "a look says what an import says"
        return
    json.dumps(statistics(traffic), allow_nan=False)
    codes = ("zero_output", "zero_prompt", "failed", "longer_than_model")
    left_out = sum(finding.count for finding in traffic.warnings if finding.code in codes)
    assert traffic.rows_read == traffic.requests + left_out
