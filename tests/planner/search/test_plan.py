"""The whole plan: verdicts in words, what qualifies them, and that the same question has the same answer."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.engines import MeasuredEngine
from calibration.steptime import linear_model
from planner.search import ObjectiveError, PlanError, PlanResult, SearchSpace, parse_objectives, plan
from planner.search.engines import budget_of, seqs_of
from planner.search.inputs import traffic_inputs
from planner.serving_engines import vllm
from planner.traffic import PrefixHashes, Traffic

SPACE = SearchSpace((64, 256, 1024), (0, 128), (16, 64), max_replicas=4)
KV_TOKENS = 40_000

Ask = Callable[..., PlanResult]


@pytest.fixture
def ask(traffic: Callable[..., Traffic], model: Any, architecture: Architecture) -> Ask:
    def ask_(
        *objectives: str, space: SearchSpace = SPACE, requests: Traffic | None = None, **options: Any
    ) -> PlanResult:
        options = {"device": "RTX 4090", "refits": 4, "threads": 2, "max_model_len": 8192} | options
        asked = options.pop("model", model)
        return plan(
            requests or traffic(rate_per_s=9.0),
            asked,
            KV_TOKENS,
            architecture,
            parse_objectives(objectives),
            space,
            **options,
        )

    return ask_


def test_the_verdict_is_one_sentence_with_everything_in_it(ask: Ask) -> None:
    result = ask("ttft:p95:0.5", "itl:p99:0.06")
    choice = result.verdict.choice
    assert choice is not None
    assert result.feasible
    ttft, itl = choice.predictions
    assert ttft.predicted_s is not None
    assert itl.predicted_s is not None
    pattern = (
        r"(1 replica|\d replicas) of Llama-3\.1-8B on RTX 4090 with max_num_batched_tokens \d+, max_num_seqs \d+"
        r"(, long_prefill_token_threshold \d+)? meets? TTFT p95 <= 500 ms \(predicted [\d.]+ m?s\) and "
        r"ITL p99 <= 60 ms \(predicted [\d.]+ ms\)\."
    )
    assert re.fullmatch(pattern, result.verdict.sentence)
    assert result.verdict.binding in ("ttft:p95", "itl:p99")
    assert ttft.predicted_s <= 0.5
    assert itl.predicted_s <= 0.06


def test_no_fewer_replicas_would_do_and_every_combination_has_a_status(ask: Ask) -> None:
    result = ask("ttft:p95:0.2", "itl:p99:0.06")
    choice = result.verdict.choice
    assert choice is not None
    assert choice.candidate.replicas > 1
    assert len(result.candidates) == 10
    for candidate in result.candidates:
        assert candidate.status in ("meets", "fails", "saturated", "not covered", "invalid")
        assert candidate.status != "meets" or candidate.replicas >= choice.candidate.replicas
        assert candidate.reason or candidate.status == "meets"
        below = [t for t in candidate.tried if t.replicas < candidate.replicas]
        assert all(t.status != "meets" and t.reason for t in below)
        assert candidate.trade is not None
    assert result.trade_replicas == choice.candidate.replicas


def test_the_summary_is_what_the_command_prints(ask: Ask) -> None:
    result = ask("ttft:p95:0.5", "itl:p99:0.06")
    summary = json.loads(json.dumps(result.summary_dict(), allow_nan=False))
    assert summary["feasible"] is True
    assert summary["deployment"] == "aggregated"
    assert summary["binding"].split(":")[0] in ("ttft", "itl")
    assert [(o["metric"], o["percentile"], o["limit"]) for o in summary["objectives"]] == [
        ("ttft", 95.0, 0.5),
        ("itl", 99.0, 0.06),
    ]
    assert all(0 < o["predicted"] <= o["limit"] for o in summary["objectives"])
    flags = summary["flags"]
    assert flags[flags.index("--max-num-batched-tokens") + 1] == str(
        summary["knobs"]["max_num_batched_tokens"]
    )
    assert flags[flags.index("--max-model-len") + 1] == "8192"
    assert {f for f in flags if f.startswith("--")} <= set(vllm.FLAGS)


def test_the_result_is_json_and_repeats(ask: Ask) -> None:
    first, second = (ask("ttft:p95:0.3", "tpot:p90:0.05", threads=t) for t in (1, 3))
    text = json.dumps(first.to_dict(), allow_nan=False, sort_keys=True)
    assert text == json.dumps(second.to_dict(), allow_nan=False, sort_keys=True)
    inputs = json.loads(text)["inputs"]
    assert SearchSpace.from_dict(inputs["space"]) == SPACE
    assert [o.spec for o in parse_objectives(inputs["objectives"])] == ["ttft:p95:0.3", "tpot:p90:0.05"]


def test_a_percentile_that_is_the_largest_value_is_said_to_be(
    ask: Ask, traffic: Callable[..., Traffic]
) -> None:
    result = ask("ttft:p99:1", "ttft:p90:1", requests=traffic(requests=71, rate_per_s=2.0), refits=0)
    assert (
        "TTFT p99 is not claimed: p99 of 71 requests is the maximum (299 samples needed)."
        in result.verdict.remarks
    )
    assert not any(remark.startswith("TTFT p90 is not claimed") for remark in result.verdict.remarks)


def test_the_hash_knows_every_input(ask: Ask, traffic: Callable[..., Traffic]) -> None:
    base = ask("ttft:p95:0.3").content_hash
    others = [
        ask("ttft:p95:0.31"),
        ask("ttft:p95:0.3", seed=1),
        ask("ttft:p95:0.3", host_gap_s=0.001),
        ask("ttft:p95:0.3", max_model_len=4096),
        ask("ttft:p95:0.3", space=replace(SPACE, max_replicas=3)),
        ask("ttft:p95:0.3", requests=traffic(rate_per_s=9.0, seed=5)),
    ]
    assert len({base, *(other.content_hash for other in others)}) == 7


@pytest.mark.parametrize(
    "more",
    [{"max_tokens": np.full(400, 500)}, {"priority": np.arange(400)},
     {"request_class": np.zeros(400, np.int16), "class_names": ("chat",)},
     {"prefix_hashes": PrefixHashes(np.arange(400, dtype=np.uint64), np.arange(401), 16)}],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_the_hash_knows_all_of_the_requests(traffic: Callable[..., Traffic], more: dict[str, Any]) -> None:
    plain = traffic()
    assert traffic_inputs(plain) == traffic_inputs(replace(plain))
    assert traffic_inputs(plain) != traffic_inputs(replace(plain, **more))


def test_finalists_carry_intervals_around_the_prediction(ask: Ask) -> None:
    result = ask("ttft:p95:0.5", "itl:p99:0.06")
    for finalist in (result.verdict.choice, result.verdict.runner_up):
        assert finalist is not None
        assert finalist.refits == 4
        for p in finalist.predictions:
            assert p.low_s is not None
            assert p.high_s is not None
            assert p.predicted_s is not None
            assert p.low_s <= p.predicted_s < p.high_s  # every refit but the first is slower
            assert p.high_s < 2 * p.predicted_s


def test_refits_that_break_the_objective_are_counted(ask: Ask, measured_model: Callable[..., Any]) -> None:
    shaky = replace(measured_model(), spread=0.2)
    result = ask("ttft:p95:0.3", model=shaky, refits=8)
    choice = result.verdict.choice
    assert choice is not None
    assert choice.refits == 8
    assert choice.holding < 8
    assert any(f"{choice.holding} of 8 draws" in remark for remark in result.verdict.remarks)


def test_the_runner_up_behaves_differently(ask: Ask) -> None:
    verdict = ask("ttft:p95:0.5", "itl:p99:0.06").verdict
    assert verdict.choice is not None
    assert verdict.runner_up is not None
    assert verdict.runner_up.candidate.replicas >= verdict.choice.candidate.replicas
    assert verdict.runner_up.behaviour != verdict.choice.behaviour


def test_margins_inside_the_error_band_go_to_the_simpler_configuration(
    ask: Ask, traffic: Callable[..., Traffic]
) -> None:
    idle = traffic(requests=200, rate_per_s=0.2)
    choice = ask("ttft:p50:5", requests=idle).verdict.choice
    assert choice is not None
    assert choice.candidate.knobs.max_num_batched_tokens == 1024
    assert choice.candidate.knobs.max_num_seqs == 64
    assert choice.candidate.knobs.long_prefill_token_threshold == 0
    strict = ask("ttft:p50:5", requests=idle, band=0.0).verdict
    assert strict.choice is not None


def test_more_replicas_would_help_is_told_from_impossible(ask: Ask, traffic: Callable[..., Traffic]) -> None:
    busy = traffic(requests=400, rate_per_s=60.0)
    crowded = ask("ttft:p95:0.3", requests=busy, space=replace(SPACE, max_replicas=2)).verdict
    assert not crowded.feasible
    assert not crowded.impossible
    assert crowded.sentence.startswith("No configuration meets this: ")
    assert (
        "; 3 replicas would do; so would a limit on TTFT p95 of" not in crowded.sentence
    )  # all are saturated
    assert crowded.sentence.endswith("is still saturated; 3 replicas would do.")
    alone = ask("itl:p99:0.009", "ttft:p95:2").verdict
    assert not alone.feasible
    assert alone.impossible
    assert alone.binding == "itl:p99"
    assert "impossible for a single request" in alone.sentence
    assert alone.alone_s is not None
    assert alone.alone_s["itl:p99"] == pytest.approx(0.0101, rel=0.01)


def test_an_infeasible_plan_names_the_binding_objective_and_the_closest(
    ask: Ask, traffic: Callable[..., Traffic]
) -> None:
    result = ask(
        "ttft:p95:0.12", "itl:p99:60", requests=traffic(rate_per_s=24.0), space=replace(SPACE, max_replicas=2)
    )
    verdict = result.verdict
    assert not verdict.feasible
    assert verdict.binding == "ttft:p95"
    assert verdict.closest is not None
    assert verdict.closest.candidate.replicas == 2
    assert "TTFT p95 <= 120 ms fails; the closest, 2 replicas" in verdict.sentence
    summary = result.summary_dict()
    assert summary["replicas"] is None
    assert summary["flags"] == []
    assert summary["closest"]["replicas"] == 2
    assert summary["objectives"][0]["predicted"] > 0.12


def test_a_saturated_candidate_shows_no_latency(ask: Ask, traffic: Callable[..., Traffic]) -> None:
    flood = traffic(requests=600, rate_per_s=200.0)
    result = ask("ttft:p95:80000", requests=flood, space=replace(SPACE, max_replicas=1))
    assert not result.feasible
    assert {c.status for c in result.candidates} == {"saturated"}
    assert all(p.predicted_s is None and p.margin is None for c in result.candidates for p in c.predictions)
    assert "saturated" in result.verdict.sentence


def test_what_the_calibration_does_not_cover_is_never_recommended(
    ask: Ask, measured_model: Callable[..., Any]
) -> None:
    verdict = ask("ttft:p95:0.5", model=measured_model(tokens=256, batch=64)).verdict
    assert verdict.choice is not None
    assert verdict.choice.candidate.knobs.max_num_batched_tokens == 256
    short = ask("ttft:p95:0.5", model=measured_model(context=100)).verdict
    assert not short.feasible
    assert short.closest is not None
    assert short.closest.status == "not covered"
    assert "not covered" in short.sentence
    assert "fails" not in short.sentence, "what cannot be judged does not fail"
    assert "it cannot be judged whether TTFT p95 <= 500 ms holds" in short.sentence
    axis = "contexts of up to "
    assert axis in short.sentence
    assert "; measured up to 100" in short.sentence
    assert any("cannot be judged; the one furthest outside " in one and axis in one for one in short.remarks)


def test_the_row_of_what_is_shown_names_the_axis_too(ask: Ask, measured_model: Callable[..., Any]) -> None:
    result = ask("ttft:p95:0.5", model=measured_model(context=100))
    closest = result.verdict.closest
    assert closest is not None
    [row] = [row for row in result.candidates if row.candidate == closest.candidate]
    assert row.reason == closest.reason
    assert "contexts of up to " in row.reason


def test_of_ties_one_without_a_warning_wins(ask: Ask, traffic: Callable[..., Traffic]) -> None:
    """Nobody needs the seats: 64 of them beside a budget of 64 leave prompts no room, and 16 are as fast."""
    space = SearchSpace((64, 144), (0,), (16, 64), max_replicas=1)
    result = ask("ttft:p95:10", requests=traffic(rate_per_s=0.2, prompt=40), space=space)
    verdict = result.verdict
    assert verdict.choice is not None
    warned = [row for row in result.candidates if row.warnings]
    assert warned
    assert all(row.status == "meets" for row in warned), "they tie, or this says nothing"
    assert verdict.choice.warnings == ()
    assert seqs_of(verdict.choice.candidate.knobs) == 16
    assert any(f"{len(warned)} of them come" in remark for remark in verdict.remarks)
    again = ask("ttft:p95:10", requests=traffic(rate_per_s=0.2, prompt=40), space=space, threads=1)
    assert again.to_dict() == result.to_dict()


def test_nothing_that_can_be_tried_is_said_with_the_reason(ask: Ask) -> None:
    verdict = ask("ttft:p95:1", space=SearchSpace((32,), (0,), (64,))).verdict
    assert not verdict.feasible
    assert verdict.closest is None
    assert "none of 1 combinations can be tried" in verdict.sentence
    assert "max_num_seqs 64" in verdict.sentence


def test_requests_that_cannot_finish_are_listed_and_excluded(
    ask: Ask, traffic: Callable[..., Traffic]
) -> None:
    some = traffic(rate_per_s=9.0)
    prompt = some.prompt_tokens.copy()
    prompt[[3, 7]] = 9000
    result = ask("ttft:p95:1", requests=replace(some, prompt_tokens=prompt))
    assert result.excluded.count == 2
    assert [row[0] for row in result.excluded.requests] == [3, 7]
    assert result.verdict.sentence.endswith("not counting 2 requests that can never finish.")
    assert any("2 requests need more than max_model_len 8,192" in r for r in result.verdict.remarks)
    assert result.verdict.choice is not None
    assert result.verdict.choice.predictions[0].requests == some.requests - 2
    with pytest.raises(PlanError) as caught:
        ask("ttft:p95:1", requests=replace(some, prompt_tokens=prompt + 9000))
    assert caught.value.field == "traffic"


def test_the_longest_request_is_what_model_and_pool_allow(ask: Ask) -> None:
    result = ask("ttft:p95:1", max_model_len=None)
    assert result.inputs["max_model_len"] == (KV_TOKENS // 16 - 1) * 16
    for wrong in (1, KV_TOKENS):
        with pytest.raises(PlanError) as caught:
            ask("ttft:p95:1", max_model_len=wrong)
        assert caught.value.field == "max_model_len"


def test_a_pool_without_a_usable_block_is_refused(
    traffic: Callable[..., Traffic], model: Any, architecture: Architecture
) -> None:
    with pytest.raises(PlanError) as caught:
        plan(traffic(), model, 31, architecture, parse_objectives(["ttft:p95:1"]), SPACE)
    assert caught.value.field == "kv_tokens"
    with pytest.raises(ObjectiveError):
        plan(traffic(), model, KV_TOKENS, architecture, (), SPACE)


def test_budgets_that_leave_no_pool_are_left_out_and_told(
    traffic: Callable[..., Traffic], model: Any, architecture: Architecture
) -> None:
    small, large = min(SPACE.budgets_tokens), max(SPACE.budgets_tokens)
    assert small < large
    pools = KVCapacity((small, large), (0, 1 << 30), (KV_TOKENS, 0))
    goals = parse_objectives(["ttft:p95:5"])
    found = plan(traffic(), model, pools, architecture, goals, SPACE, max_model_len=8192, refits=2)
    assert {budget_of(row.candidate.knobs) for row in found.candidates} == {small}
    assert any(f"{large:,} tokens leave no memory for a KV cache" in one for one in found.verdict.remarks)


def test_a_percentile_with_too_few_requests_is_not_claimed(ask: Ask, traffic: Callable[..., Traffic]) -> None:
    result = ask("ttft:p99:5", "ttft:p50:5", requests=traffic(requests=71))
    choice = result.verdict.choice
    assert choice is not None
    assert [p.claimed for p in choice.predictions] == [False, True]
    assert choice.predictions[0].requests == 71
    assert "not claimed: only 71 requests" in result.verdict.sentence
    assert any("TTFT p99 is not claimed" in remark for remark in result.verdict.remarks)
    assert any("fewer than 100 requests" in remark for remark in result.verdict.remarks)


def test_single_token_outputs_have_no_gaps_to_judge(ask: Ask, traffic: Callable[..., Traffic]) -> None:
    some = traffic(rate_per_s=9.0)
    single = replace(some, output_tokens=np.ones(some.requests, dtype=np.int64))
    for asked in ("itl:p99:0.05", "tpot:p50:0.05"):
        with pytest.raises(PlanError, match="no request has a second token") as caught:
            ask(asked, "ttft:p95:1", requests=single)
        assert caught.value.field == "objectives"
    assert ask("ttft:p95:1", requests=single).feasible


def test_stopping_gives_a_partial_answer_that_says_so(ask: Ask) -> None:
    early = ask("ttft:p95:0.2", should_stop=lambda: True)
    assert early.stopped
    assert not early.feasible
    assert early.verdict.sentence.startswith("Stopped before")
    json.dumps(early.to_dict(), allow_nan=False)
    asked = iter(range(100_000))
    late = ask("ttft:p95:5", should_stop=lambda: next(asked) >= 10, threads=1)
    assert late.stopped
    assert late.feasible
    assert late.verdict.remarks[0].startswith("The search was stopped")


def test_more_replicas_than_requests_are_not_tried(ask: Ask, traffic: Callable[..., Traffic]) -> None:
    result = ask("ttft:p50:0.001", requests=traffic(requests=2))
    assert not result.feasible
    assert max(c.replicas for c in result.candidates) == 2


def test_the_default_space_is_used_when_none_is_given(
    traffic: Callable[..., Traffic], measured_model: Callable[..., Any], architecture: Architecture
) -> None:
    result = plan(
        traffic(requests=60), measured_model(tokens=64, batch=4), KV_TOKENS, architecture,
        parse_objectives(["ttft:p50:5"]), max_replicas=2, refits=0,
    )  # fmt: skip
    assert result.inputs["space"]["max_replicas"] == 2
    assert max(result.inputs["space"]["budgets_tokens"]) == 64
    assert result.verdict.choice is not None
    assert result.verdict.choice.refits == 0


def test_a_plan_for_another_engine_says_so_and_its_intervals_hold_the_factor(
    model, traffic, architecture
) -> None:
    """Prompts beside decodes: decode attention there is dearer in another engine, and ITL's upper end shows it."""
    model = replace(model, base=linear_model(0.010, token_s=1e-4, decode_context_s=2e-6), spread=0.0)
    asked = parse_objectives(["itl:p99:0.2", "ttft:p95:2.0"])
    space = SearchSpace((512,), (0,), (64,), max_replicas=1)
    found = {
        name: plan(traffic(200, 4.0), model, 40_000, architecture, asked, space, threads=1,
                   measured_engine=MeasuredEngine(name, "", "step table"))
        for name in ("vllm", "sglang")
    }  # fmt: skip
    own, other = (found[name].verdict.choice for name in ("vllm", "sglang"))
    assert [p.predicted_s for p in own.predictions] == [p.predicted_s for p in other.predictions]
    assert other.predictions[0].high_s > 1.02 * own.predictions[0].high_s
    assert not any("sglang" in remark for remark in found["vllm"].verdict.remarks)
    assert any("not of vllm" in remark for remark in found["sglang"].verdict.remarks)
    assert found["sglang"].inputs["measured_engine"]["mixed_attention"] == [1.0, 3.8]


def test_every_budget_has_the_pool_that_was_measured_beside_it(model, traffic, architecture) -> None:
    capacity = KVCapacity((256, 1024), (10, 20), (32_000, 16_000))
    space = SearchSpace((256, 1024), (0,), (64,), max_replicas=1)
    result = plan(
        traffic(50), model, capacity, architecture, parse_objectives(["ttft:p95:5.0"]), space, threads=1
    )
    blocks = {c.knobs.max_num_batched_tokens: c.knobs.num_blocks for c in result.candidates}
    assert blocks == {256: 1999, 1024: 999}
    assert result.inputs["kv_tokens"] == 16_000
    assert result.inputs["max_model_len"] == 999 * 16
