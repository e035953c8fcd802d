"""TensorRT-LLM's rules and its configuration file, read back through the table of keys."""

from __future__ import annotations

import pytest

from planner.serving_engines import tensorrt_llm, vllm
from planner.serving_engines.rules import expressible
from planner.simulation.knobs import EQUAL_PROGRESS, SCHEDULING_POLICIES, TrtLlmKnobs


def knobs(**changes: object) -> TrtLlmKnobs:
    values: dict[str, object] = {
        "max_num_tokens": 8192,
        "max_batch_size": 2048,
        "num_blocks": 1294,
        "enable_chunked_prefill": True,
    }
    return TrtLlmKnobs(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "max_seq_len", "field"),
    [
        ({"max_num_tokens": 8200}, 8192, "max_num_tokens"),
        ({"enable_chunked_prefill": False}, 8193, "max_num_tokens"),
        ({}, 1294 * 32 + 1, "max_seq_len"),
    ],
)
def test_a_broken_rule_is_named_and_nothing_is_written(
    changes: dict[str, object], max_seq_len: int, field: str
) -> None:
    found = tensorrt_llm.violations(knobs(**changes), max_seq_len)
    assert [violation.field for violation in found if violation.severity == "error"] == [field]
    with pytest.raises(ValueError, match=field):
        tensorrt_llm.config(knobs(**changes), max_seq_len)


def test_rules_hold_at_their_edge() -> None:
    assert tensorrt_llm.violations(knobs(), 1294 * 32) == ()
    whole = knobs(enable_chunked_prefill=False, max_num_tokens=8200)
    assert tensorrt_llm.violations(whole, 8200) == ()
    assert tensorrt_llm.violations(whole, 16_000, longest_prompt_tokens=8200) == ()


def test_no_room_for_a_worthwhile_chunk_is_a_warning() -> None:
    (found,) = tensorrt_llm.violations(knobs(max_num_tokens=2144), 8192)
    assert (found.severity, found.field) == ("warning", "max_num_tokens")
    assert tensorrt_llm.violations(knobs(max_num_tokens=2176), 8192) == ()


def keys(mapping: dict[str, object], prefix: str = "") -> dict[str, object]:
    read: dict[str, object] = {}
    for key, value in mapping.items():
        read |= keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return read


def test_the_configuration_reads_back() -> None:
    equal = knobs(context_chunking_policy=EQUAL_PROGRESS, overlap_scheduler=False)
    read = keys(tensorrt_llm.config(equal, 4096))
    assert read == {
        "max_num_tokens": 8192,
        "max_batch_size": 2048,
        "max_seq_len": 4096,
        "enable_chunked_prefill": True,
        "scheduler_config.context_chunking_policy": "EQUAL_PROGRESS",
        "kv_cache_config.max_tokens": 1294 * 32,
        "kv_cache_config.tokens_per_block": 32,
        "disable_overlap_scheduler": True,
    }
    assert set(read) == set(tensorrt_llm.KEYS)
    assert tensorrt_llm.config_yaml(equal, 4096).splitlines() == [
        "max_num_tokens: 8192",
        "max_batch_size: 2048",
        "max_seq_len: 4096",
        "enable_chunked_prefill: true",
        "disable_overlap_scheduler: true",
        "kv_cache_config:",
        "  max_tokens: 41408",
        "  tokens_per_block: 32",
        "scheduler_config:",
        "  context_chunking_policy: EQUAL_PROGRESS",
    ]
    assert "scheduler_config" not in tensorrt_llm.config(knobs(), 4096)


def test_policies() -> None:
    assert [expressible(tensorrt_llm.POLICIES, policy) for policy in SCHEDULING_POLICIES] == [
        True,
        False,
        False,
    ]
    assert {key for support in tensorrt_llm.POLICIES for key in support.flags} <= set(tensorrt_llm.KEYS)
    assert [expressible(vllm.POLICIES, policy) for policy in SCHEDULING_POLICIES] == [True, False, False]
    assert {flag for support in vllm.POLICIES for flag in support.flags} <= set(vllm.FLAGS)


def test_usable_blocks() -> None:
    assert tensorrt_llm.usable_blocks(41_408) == 1294
