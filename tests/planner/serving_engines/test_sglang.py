"""SGLang's rules and its flags, read back through the table of flags."""

from __future__ import annotations

import pytest

from planner.serving_engines import sglang
from planner.serving_engines.rules import RuleViolation, expressible
from planner.simulation.knobs import SCHEDULING_POLICIES, SglangKnobs


def knobs(**changes: object) -> SglangKnobs:
    values: dict[str, object] = {
        "chunked_prefill_size": 8192,
        "max_running_requests": 256,
        "max_total_tokens": 41_408,
    }
    return SglangKnobs(**(values | changes))  # type: ignore[arg-type]


def fields(found: tuple[RuleViolation, ...], severity: str) -> list[str]:
    return [violation.field for violation in found if violation.severity == severity]


@pytest.mark.parametrize(
    ("changes", "context_length", "field"),
    [
        ({"page_size": 64, "chunked_prefill_size": 1000}, 8192, "chunked_prefill_size"),
        ({"max_prefill_tokens": 8191}, 8192, "chunked_prefill_size"),
        ({}, 41_407, "context_length"),
    ],
)
def test_a_broken_rule_is_named_and_no_flags_are_given(
    changes: dict[str, object], context_length: int, field: str
) -> None:
    assert fields(sglang.violations(knobs(**changes), context_length), "error") == [field]
    with pytest.raises(ValueError, match=field):
        sglang.flags(knobs(**changes), context_length)


def test_rules_hold_at_their_edge() -> None:
    assert sglang.violations(knobs(max_prefill_tokens=8192), 41_406) == ()


def test_mixed_chunks_need_room_beside_the_decodes() -> None:
    found = sglang.violations(knobs(enable_mixed_chunk=True, chunked_prefill_size=383), 8192)
    assert fields(found, "warning") == ["chunked_prefill_size"]
    assert "prefill starves" in found[0].message
    assert sglang.violations(knobs(enable_mixed_chunk=True, chunked_prefill_size=384), 8192) == ()
    assert sglang.violations(knobs(chunked_prefill_size=383), 8192) == ()  # decodes do not take from it


def read_back(arguments: list[str]) -> dict[str, str | bool]:
    """Field -> value, as the engine's parser would read them; KeyError for a flag outside the table."""
    read: dict[str, str | bool] = {}
    position = 0
    while position < len(arguments):
        field = sglang.FLAGS[arguments[position]]
        assert field not in read
        takes_value = position + 1 < len(arguments) and not arguments[position + 1].startswith("--")
        read[field] = arguments[position + 1] if takes_value else not field.startswith("overlap")
        position += 1 + takes_value
    return read


def test_flags_read_back() -> None:
    assert read_back(sglang.flags(knobs(), 8192)) == {
        "chunked_prefill_size": "8192",
        "max_prefill_tokens": "16384",
        "max_running_requests": "256",
        "max_total_tokens": "41408",
        "page_size": "1",
        "context_length": "8192",
    }
    everything = knobs(
        enable_mixed_chunk=True,
        init_new_token_ratio=0.35,
        prefill_decode_interval=3,
        prefill_decode_interval_min_bs=2,
        overlap_schedule=False,
    )
    extra = {
        "enable_mixed_chunk": True,
        "schedule_conservativeness": "0.5",
        "prefill_decode_interval": "3",
        "prefill_decode_interval_min_bs": "2",
        "overlap_schedule": False,
    }
    plain = read_back(sglang.flags(knobs(), 8192))
    assert read_back(sglang.flags(everything, 8192)) == plain | extra
    assert set(plain | extra) == set(sglang.FLAGS.values())


@pytest.mark.parametrize("changes", [{"min_new_token_ratio": 0.1}, {"new_token_ratio_decay_steps": 500}])
def test_what_no_flag_sets_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no flag of SGLang"):
        sglang.flags(knobs(**changes), 8192)


def test_policies() -> None:
    assert [expressible(sglang.POLICIES, policy) for policy in SCHEDULING_POLICIES] == [True, True, False]
    assert {flag for support in sglang.POLICIES for flag in support.flags} <= set(sglang.FLAGS)
