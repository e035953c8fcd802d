"""Confidence, what breaks first, sensitivities, policies, curves, and what would help: checked by plain simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from calibration.steptime.scalar import linear_model, step_seconds
from planner.search import PlanResult, SearchSpace, parse_objectives, plan
from planner.search.combinations import Candidate
from planner.search.draws import drawn, draws_of, resample
from planner.search.evaluate import Bench, evaluate_candidate
from planner.search.requests import Requests
from planner.search.scaling import scaled
from planner.search.sensitivity import burstier
from planner.simulation.kernel import simulate
from planner.simulation.knobs import PolicyKnobs, VllmKnobs
from planner.traffic import Traffic

SPACE = SearchSpace((64, 256, 1024), (0,), (64,), max_replicas=4)
GOALS = ("ttft:p95:0.3", "itl:p99:0.06")


@pytest.fixture
def ask(traffic: Callable[..., Traffic], model: Any, architecture: Architecture) -> Callable[..., PlanResult]:
    def asked(*objectives: str, requests: Traffic | None = None, **options: Any) -> PlanResult:
        options = {"refits": 8, "threads": 2, "max_model_len": 8192, "space": SPACE} | options
        goals, space = parse_objectives(objectives or GOALS), options.pop("space")
        asked_model = options.pop("model", model)
        return plan(
            requests or traffic(rate_per_s=20.0), asked_model, 40_000, architecture, goals, space, **options
        )

    return asked


def test_a_resample_has_whole_blocks_and_their_gaps() -> None:
    random = np.random.default_rng(0)
    arrival_s = np.cumsum(random.exponential(1.0, 1000))
    order, drawn_s = resample(arrival_s, 100, 1, random)
    assert len(order) == 1000
    inside = np.diff(order) == 1
    assert inside.mean() > 0.98  # ten blocks of a hundred
    np.testing.assert_allclose(np.diff(drawn_s)[inside], np.diff(arrival_s)[order[1:][inside] - 1])
    assert drawn_s[0] == 0.0


def test_a_short_trace_is_drawn_longer_from_a_sample_of_it() -> None:
    arrival_s = np.arange(40.0)
    order, drawn_s = resample(arrival_s, 5, 3, np.random.default_rng(1))
    assert len(order) == len(drawn_s) == 120
    blocks = order.reshape(-1, 5)
    np.testing.assert_array_equal(blocks, (blocks[:, :1] + np.arange(5)) % 40)
    assert len(np.unique(blocks[:, 0])) <= 12, "of the dozen blocks that were drawn"
    assert drawn_s[-1] == pytest.approx(119.0)


def test_what_a_short_trace_promises_is_what_its_traffic_does_in_the_long_run(model: Any) -> None:
    """Most stretches of 200 requests at 70 % load miss the busy hour: their own percentiles are too low. Draws are
    not: their median, over many such stretches, is where the percentile of 40,000 requests is."""
    random = np.random.default_rng(3)
    goals = parse_objectives(["ttft:p95:100", "itl:p99:100"])

    def bench(count: int) -> Bench:
        ones = np.ones(count, dtype=np.int64)
        arrival_s = np.cumsum(random.gamma(0.25, 0.6 / 0.25, count))  # CV 2
        requests = Requests(arrival_s, 4_000 * ones, 2 * ones)
        return Bench(requests, goals, goals, model.arrays(), 0.0, simulate, lambda: False)  # type: ignore[arg-type]

    candidate = Candidate(VllmKnobs(4_096, 64, 1_000), 1)
    truth = evaluate_candidate(bench(40_000), candidate).values_s["ttft:p95"]
    stretches, promised = [], []
    for seed in range(40):
        short = bench(200)
        stretches.append(evaluate_candidate(short, candidate).values_s["ttft:p95"])
        draws = draws_of(model, short.requests, 5, seed, link_sigma=0.0, step_sigma=0.0)
        answers = [evaluate_candidate(drawn(short, draws, number), candidate) for number in range(5)]
        promised.append(np.median([np.inf if a.saturated else a.values_s["ttft:p95"] for a in answers]))
    assert np.median(stretches) < 0.8 * truth
    assert 0.85 * truth < np.median(promised) < 1.25 * truth


@pytest.mark.parametrize(("count", "rounds"), [(200, 25), (2_000, 3), (5_000, 1)])
def test_resampled_means_scatter_as_independent_requests_do(
    traffic: Callable[..., Traffic], model: Any, count: int, rounds: int
) -> None:
    """Of independent prompts the mean's standard error is sigma / sqrt(N), however long the drawn trace is."""
    some = traffic(requests=count)
    requests = Requests(some.arrival_s, some.prompt_tokens, some.output_tokens)
    goals = parse_objectives(GOALS)
    bench = Bench(requests, goals, goals[:2], model.arrays(), 0.0, simulate, lambda: False)  # type: ignore[arg-type]
    draws = draws_of(model, requests, 300, 0, link_sigma=0.0, step_sigma=0.0)
    assert draws.rounds == rounds
    means = [drawn(bench, draws, number).requests.prompt_tokens.mean() for number in range(300)]
    assert np.std(means) == pytest.approx(some.prompt_tokens.std() / np.sqrt(count), rel=0.15)


def test_probabilities_are_shares_of_the_draws(ask: Callable[..., PlanResult]) -> None:
    choice = ask().verdict.choice
    assert choice is not None
    assert choice.refits == 8
    for p in choice.predictions:
        assert p.probability is not None
        assert p.probability * 8 == round(p.probability * 8)
    assert choice.holding <= 8 * min(p.probability or 0.0 for p in choice.predictions)


def test_other_traffic_widens_the_interval(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic], model: Any
) -> None:
    """Few requests say less about the next ones than many."""
    sure = replace(
        model,
        spread=0.0,
        decode_spread=type(model.decode_spread)(0.0),
        chunk_spread=type(model.chunk_spread)(0.0),
    )
    widths = []
    for requests in (150, 2400):
        some = traffic(requests=requests, rate_per_s=3.0)
        choice = ask(requests=some, refits=24, model=sure).verdict.choice
        assert choice is not None
        p = choice.predictions[0]
        assert p.low_s is not None
        assert p.high_s is not None
        assert p.predicted_s is not None
        widths.append((p.high_s - p.low_s) / p.predicted_s)
    assert widths[0] > 1.5 * widths[1]


def test_scaled_step_times_are_scaled() -> None:
    model = linear_model(0.010, token_s=1e-4, mixed_s=0.002)
    for shape in ((4.0, 4.0, 4.0, 400.0, 100.0, 0.0, 0.0), (100.0, 2.0, 3.0, 50.0, 30.0, 4000.0, 98.0)):
        assert step_seconds(scaled(model, 1.3), *shape)[0] == pytest.approx(
            1.3 * step_seconds(model, *shape)[0]
        )


def test_the_load_that_breaks_it_breaks_it(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    result = ask()
    choice, breaking = result.verdict.choice, result.closer and result.closer.breaking
    assert choice is not None
    assert breaking is not None
    assert breaking.holds_up_to is not None
    assert breaking.breaks_at is not None
    assert breaking.holds_up_to < breaking.breaks_at <= 1.0102 * breaking.holds_up_to
    some, replicas = traffic(rate_per_s=20.0), choice.candidate.replicas
    for load, holds in ((breaking.holds_up_to, True), (breaking.breaks_at, False)):
        ttft_s = np.concatenate([
            simulate(
                np.ascontiguousarray(some.arrival_s[r::replicas] / load),
                np.ascontiguousarray(some.prompt_tokens[r::replicas]),
                np.ascontiguousarray(some.output_tokens[r::replicas]),
                None, choice.candidate.knobs, linear_model(0.010, token_s=1e-4),
            ).ttft_s() for r in range(replicas)
        ])  # fmt: skip
        if breaking.first == "ttft:p95":
            assert (np.percentile(ttft_s, 95) <= 0.3) == holds
    assert breaking.first in ("ttft:p95", "itl:p99", "saturated")


def test_the_load_that_breaks_it_is_found_far_away(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    """Of an idle replica far beyond three times the rate, of a busy one far below half of it."""
    idle = ask(requests=traffic(rate_per_s=0.5), refits=0)
    assert idle.feasible
    assert idle.closer is not None
    assert idle.closer.breaking is not None
    assert (idle.closer.breaking.breaks_at or 0.0) > 3.0
    assert idle.closer.breaking.first is not None
    held = idle.closer.breaking.holds_up_to
    assert held is not None
    assert idle.closer.breaking.breaks_at is not None
    assert idle.closer.breaking.breaks_at <= 1.0102 * held
    tight = ["ttft:p95:0.12", "itl:p99:0.1"]
    busy = ask(*tight, requests=traffic(rate_per_s=16.0), refits=0, space=replace(SPACE, max_replicas=1))
    assert not busy.feasible
    assert busy.closer is not None
    assert busy.closer.breaking is not None
    assert 0.0 < (busy.closer.breaking.holds_up_to or 0.0) < 0.5


def test_sensitivities_are_ranked_and_have_their_direction(ask: Callable[..., PlanResult]) -> None:
    result = ask()
    assert result.closer is not None
    found = {(s.what, s.change): s for s in result.closer.sensitivities}
    harms = [s.harm for s in result.closer.sensitivities if s.harm is not None]
    assert harms == sorted(harms, reverse=True)
    assert found["rate", "+10 %"].harm is None or (found["rate", "+10 %"].harm or 0) > 0
    slower = next(
        s for (what, change), s in found.items() if what == "step times" and change.startswith("+1")
    )
    assert slower.harm is None or slower.harm > 0
    assert any(what == "one replica lost" for what, _ in found)
    hits = found["prefix hits", "+10 % of all prompt tokens"]
    assert hits.harm is not None and hits.harm <= 0, "none are assumed, so some can only help"


def test_burstier_keeps_the_rate_and_changes_the_cv() -> None:
    arrival_s = np.cumsum(np.random.default_rng(3).exponential(1.0, 4000))
    arrival_s -= arrival_s[0]
    for factor in (0.5, 1.5):
        other = burstier(arrival_s, factor)
        gaps, before = np.diff(other), np.diff(arrival_s)
        assert other[-1] == pytest.approx(arrival_s[-1])
        assert gaps.std() / gaps.mean() == pytest.approx(factor * before.std() / before.mean(), rel=0.02)
    even = np.arange(50.0)
    assert burstier(even, 1.5) is even


def test_the_generic_policies_are_compared_and_only_decode_first_is_vllms(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic], model: Any
) -> None:
    result = ask()
    choice = result.verdict.choice
    assert choice is not None
    assert result.closer is not None
    policies = {p.policy: p for p in result.closer.policies}
    assert set(policies) == {"decode-first", "prefill-first", "fair-share"}
    assert [name for name, p in policies.items() if p.expressible] == ["decode-first"]
    assert "cannot be told" in policies["prefill-first"].note
    own, some, replicas = choice.candidate.knobs, traffic(rate_per_s=20.0), choice.candidate.replicas
    knobs = PolicyKnobs(
        own.max_num_batched_tokens, own.max_num_seqs, own.num_blocks, policy="prefill-first"  # type: ignore[union-attr]
    )  # fmt: skip
    ttft_s = np.concatenate([
        simulate(
            np.ascontiguousarray(some.arrival_s[r::replicas]), np.ascontiguousarray(some.prompt_tokens[r::replicas]),
            np.ascontiguousarray(some.output_tokens[r::replicas]), None, knobs, model.arrays(),
        ).ttft_s() for r in range(replicas)
    ])  # fmt: skip
    assert policies["prefill-first"].values_s["ttft:p95"] == float(np.percentile(ttft_s, 95))


def test_the_curves_pass_through_the_predictions(ask: Callable[..., PlanResult]) -> None:
    result = ask()
    choice = result.verdict.choice
    assert choice is not None
    assert result.closer is not None
    why = result.closer.why
    assert why is not None
    data = why.to_dict()
    at = data["curve_percentiles"].index(95.0)
    assert data["curves_s"]["ttft"][at] == choice.predictions[0].predicted_s
    for values in data["curves_s"].values():
        assert values == sorted(values)
    shares = [limit["share"] for limit in data["limits"]]
    assert shares == sorted(shares, reverse=True)
    assert {limit["what"] for limit in data["limits"]} >= {"compute", "KV cache", "sequences", "token budget"}


def test_what_would_help_does_help(ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]) -> None:
    busy = traffic(rate_per_s=33.0)
    result = ask(requests=busy, space=replace(SPACE, max_replicas=2))
    assert not result.feasible
    help_ = result.closer and result.closer.relief
    assert help_ is not None
    assert help_.replicas is not None
    assert f"{help_.replicas} replicas would do" in result.verdict.sentence
    assert help_.hardware is not None
    knobs = help_.hardware.knobs
    enough = ask(
        requests=busy, refits=0,
        space=SearchSpace((knobs.max_num_batched_tokens,), (0,), (64,), max_replicas=help_.replicas),  # type: ignore[union-attr]
    )  # fmt: skip
    assert enough.feasible
    if help_.limits_s:
        relaxed = [f"{key}:{1.0001 * value}" for key, value in help_.limits_s.items()]
        kept = [goal for goal in GOALS if goal.rsplit(":", 1)[0] not in help_.limits_s]
        assert ask(*relaxed, *kept, requests=busy, space=replace(SPACE, max_replicas=2), refits=0).feasible


def test_extra_hardware_is_found_however_much_it_is(
    ask: Callable[..., PlanResult], traffic: Callable[..., Traffic]
) -> None:
    """One replica was allowed, and about ten are needed."""
    result = ask(requests=traffic(rate_per_s=120.0), space=replace(SPACE, max_replicas=1))
    help_ = result.closer and result.closer.relief
    assert help_ is not None
    assert help_.replicas is not None
    assert help_.replicas > 4
    assert f"{help_.replicas} replicas would do" in result.verdict.sentence


def test_classes_that_lost_have_their_reason(ask: Callable[..., PlanResult]) -> None:
    verdict = ask().verdict
    assert verdict.choice is not None
    if verdict.choice.candidate.replicas > 1:
        assert any(lost.what.startswith(str(verdict.choice.candidate.replicas - 1)) for lost in verdict.lost)
    assert any(
        lost.what.startswith("max_num_batched_tokens above") and "ITL p99" in lost.reason
        for lost in verdict.lost
    )
    assert all(lost.reason for lost in verdict.lost)
