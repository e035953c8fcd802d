"""Whose engine was measured, and what a plan for another one says and allows for."""

import pytest

from calibration.engines import MIXED_ATTENTION, MeasuredEngine, foreign, parse_engine
from calibration.facts import Facts, FactsError
from calibration.steptime import linear_model, step_seconds
from calibration.steptime.foreign import with_mixed_attention


def test_the_engine_planned_for_is_the_one_measured() -> None:
    assert foreign(MeasuredEngine("vllm", "0.33.0", "iteration log"), "vllm", "0.33.0") is None
    assert foreign(MeasuredEngine("vllm", "", "step table"), "vllm", "0.33.0") is None


def test_another_version_is_said_and_widens_nothing() -> None:
    other = foreign(MeasuredEngine("vllm", "0.19.0", "step table"), "vllm", "0.33.0")
    assert other.mixed_attention == (1.0, 1.0)
    assert "vllm 0.19.0" in other.sentence
    assert "vllm 0.33.0" in other.sentence


@pytest.mark.parametrize(
    "engine", [MeasuredEngine("ridgeline", "torch 2.13"), parse_engine("", "step table")]
)
def test_another_engine_is_said_with_its_factor(engine) -> None:
    other = foreign(engine, "vllm", "0.33.0")
    assert other.mixed_attention == MIXED_ATTENTION == (1.0, 3.8)
    assert "not of vllm 0.33.0" in other.sentence
    assert "1 to 3.8 times" in other.sentence


def test_what_a_person_writes() -> None:
    assert parse_engine(" vLLM  v0.19.0 ", "step table") == MeasuredEngine("vllm", "0.19.0", "step table")
    assert parse_engine("", "step table").label == "an engine that was not named"


@pytest.mark.parametrize(
    "values", [("", "", "measured"), ("a\nb", "", "measured"), ("a", "x" * 200, "measured"), ("a", "", "hearsay"),
               ("a", "", "measured", (2.0, 1.0)), ("a", "", "measured", (0.0, 1.0))],
)  # fmt: skip
def test_engines_that_are_none(values) -> None:
    with pytest.raises(ValueError):
        MeasuredEngine(*values)


def test_the_factor_changes_decode_attention_beside_a_chunk_and_nothing_else() -> None:
    plain = linear_model(0.01, token_s=1e-4, decode_context_s=1e-6)
    dearer = with_mixed_attention(plain, 3.0)
    decode, mixed = (4, 4, 4, 4000.0, 1000.0, 0, 0), (104, 4, 5, 4000.0, 1000.0, 5050.0, 1000.0)
    assert step_seconds(dearer, *decode) == step_seconds(plain, *decode)
    assert step_seconds(dearer, *mixed)[0] == pytest.approx(step_seconds(plain, *mixed)[0] + 2 * 4000 * 1e-6)
    assert with_mixed_attention(plain, 1.0) is plain


def test_files_of_before_know_whose_engine_they_had() -> None:
    assert Facts.from_dict({}, "ridgeline").engine.name == "ridgeline"
    assert Facts.from_dict({}, "imported").engine.name == "unknown"


@pytest.mark.parametrize(
    ("values", "field"),
    [({"engine": 3}, "engine"), ({"engine": {"name": "x", "source": "?"}}, "engine"),
     ({"kv_capacity": []}, "kv_capacity"),
     ({"kv_capacity": {}}, "kv_capacity"), ({"transfers": {}}, "transfers"), ({"transfers": [{}]}, "transfers.0"),
     ({"transfers": [{"size_bytes": [1], "latency_s": ["x"], "bytes_per_s": [1]}]}, "transfers.0"),
     ({"engine": {"name": "x", "source": "measured", "mixed_attention": [1]}}, "engine")],
)  # fmt: skip
def test_facts_that_are_none_name_their_field(values, field) -> None:
    with pytest.raises(FactsError) as caught:
        Facts.from_dict(values)
    assert caught.value.field == field
