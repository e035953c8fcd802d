"""vLLM's rules, its KV pool and its flags, read back through the table of flags."""

import numpy as np
import pytest

from calibration.architecture import PRESETS
from planner.serving_engines import vllm
from planner.simulation.knobs import SpeculativeConfig, VllmKnobs

LLAMA = PRESETS["llama-3.1-8b"]


def knobs(**changes: object) -> VllmKnobs:
    values: dict[str, object] = {
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "num_blocks": 2587,
    }
    return VllmKnobs(**(values | changes))  # type: ignore[arg-type]


def fields(found: tuple[vllm.RuleViolation, ...], severity: str) -> list[str]:
    return [v.field for v in found if v.severity == severity]


def test_the_defaults_break_no_rule() -> None:
    assert vllm.violations(knobs(), 32_768) == ()


@pytest.mark.parametrize(
    ("changes", "max_model_len", "field"),
    [
        ({"max_num_batched_tokens": 255}, 8192, "max_num_batched_tokens"),
        ({"long_prefill_token_threshold": 8193}, 8192, "long_prefill_token_threshold"),
        ({}, 2587 * 16 + 1, "max_model_len"),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, object], max_model_len: int, field: str) -> None:
    assert fields(vllm.violations(knobs(**changes), max_model_len), "error") == [field]


def test_rules_hold_at_their_edge() -> None:
    edge = knobs(max_num_batched_tokens=8192, max_num_seqs=256, long_prefill_token_threshold=8192)
    assert vllm.violations(edge, 8192, chunked_prefill=False) == ()
    assert fields(vllm.violations(edge, 8193, chunked_prefill=False), "error") == ["max_num_batched_tokens"]
    assert fields(vllm.violations(edge, 8191), "error") == ["long_prefill_token_threshold"]


def test_no_room_for_a_worthwhile_chunk_is_a_warning() -> None:
    found = vllm.violations(knobs(max_num_batched_tokens=383), 8192)
    assert fields(found, "error") == []
    assert fields(found, "warning") == ["max_num_batched_tokens"]
    assert "prefill starves" in found[0].message
    assert vllm.violations(knobs(max_num_batched_tokens=384), 8192) == ()


def test_one_block_of_the_pool_is_reserved() -> None:
    assert vllm.usable_blocks(41_408) == 2587
    assert vllm.usable_blocks(15) == 0


def test_requests_that_do_not_fit_are_found() -> None:
    prompt, output = np.array([8191, 8191, 8000]), np.array([1, 2, 193])
    assert vllm.requests_too_long(prompt, output, 8192).tolist() == [False, True, True]


def read_back(arguments: list[str]) -> dict[str, str | bool]:
    """Field -> value, as the engine's parser would read them; KeyError for a flag outside the table."""
    read: dict[str, str | bool] = {}
    position = 0
    while position < len(arguments):
        flag = arguments[position]
        field = vllm.FLAGS[flag]
        assert field not in read, f"{field} is given twice"
        takes_value = position + 1 < len(arguments) and not arguments[position + 1].startswith("--")
        read[field] = arguments[position + 1] if takes_value else not flag.startswith("--no-")
        position += 1 + takes_value
    return read


def test_flags_say_what_the_knobs_say() -> None:
    read = read_back(vllm.flags(knobs(), 32_768, LLAMA))
    assert read == {
        "max_num_batched_tokens": "2048",
        "max_num_seqs": "256",
        "max_model_len": "32768",
        "block_size": "16",
        "kv_cache_memory_bytes": str(41_408 * 131_072),
        "async_scheduling": True,
    }


def test_every_other_knob_is_written_too() -> None:
    odd = knobs(
        long_prefill_token_threshold=512,
        adaptive_threshold=True,
        prefill_schedule_interval=4,
        watermark=0.01,
        async_scheduling=False,
        block_size=32,
    )
    read = read_back(vllm.flags(odd, 32_768, LLAMA))
    assert read["long_prefill_token_threshold"] == "512"
    assert read["adaptive_threshold"] is True
    assert read["prefill_schedule_interval"] == "4"
    assert read["watermark"] == "0.01"
    assert read["async_scheduling"] is False
    assert read["block_size"] == "32"


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 64},
        {"policy": "priority"},
        {"speculative_config": SpeculativeConfig(3, 0.7)},
    ],
)
def test_what_the_engine_refuses_or_no_flag_expresses_is_not_written(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens|policy|speculative_config"):
        vllm.flags(knobs(**changes), 32_768, LLAMA)
