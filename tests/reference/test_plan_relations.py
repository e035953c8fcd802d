"""Relations of published measurements hold through the planner's own answers, not only in single simulations.

Step times are those of test_measured_cases, with the same reasons. What the publications measured in a closed loop
is offered at a rate here, because a plan is for traffic. Each plan has no headroom and no intervals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.architecture import PRESETS
from calibration.steptime.scalar import StepTimeArrays, linear_model
from planner.search import Conditions, Link, PlanResult, SearchSpace, parse_objectives, plan
from planner.search.result import CandidateResult
from planner.traffic import Traffic, synthesise

KV_TOKENS = 16_000_000  # the publications report no shortage of KV cache
MS = 1e-3


@dataclass(frozen=True)
class Exact:
    scale: float = 0.0
    law_error: float = 0.0


@dataclass(frozen=True)
class Known:
    """A step-time model that is not in doubt."""

    base: StepTimeArrays
    refits: range = range(0)
    decode_spread: Exact = Exact()
    chunk_spread: Exact = Exact()

    def arrays(self, refit: int | None = None) -> StepTimeArrays:
        return self.base

    def to_dict(self) -> dict[str, Any]:
        return {"decode_tokens_s": self.base.decode_tokens_s.tolist()}


@pytest.fixture
def cases(reference_data: Path) -> Mapping[str, Any]:
    listed = json.loads((reference_data / "cases" / "measured-cases.json").read_text())["cases"]
    return {case["id"]: case for case in listed}


def published(case: Mapping[str, Any], arm: str, metric: str) -> float:
    return float(next(a["metrics"][metric] for a in case["arms"] if a["name"] == arm))


def traffic(arrival_s: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> Traffic:
    order = np.argsort(arrival_s, kind="stable")
    return Traffic(
        arrival_s[order] - arrival_s.min(), prompts[order].astype(np.int64), outputs[order].astype(np.int64),
        source="published", format="synthetic",
    )  # fmt: skip


def poisson(rate_per_s: float, count: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(0).exponential(1.0 / rate_per_s, count))


def ask(
    some: Traffic, model: StepTimeArrays, space: SearchSpace, *objectives: str, **conditions: Any
) -> PlanResult:
    return plan(
        some, Known(model), KV_TOKENS, PRESETS["llama-3.1-8b"], parse_objectives(objectives), space, refits=0,
        threads=1, conditions=Conditions(**conditions),
    )  # fmt: skip


def value(candidate: CandidateResult, key: str) -> float:
    found = next(p.predicted_s for p in candidate.predictions if p.objective.key == key)
    assert found is not None
    return found


def test_a01_smaller_budgets_protect_decodes_and_cost_prefill(cases: Mapping[str, Any]) -> None:
    """Prompts of 16K beside short requests. At a rate, unlike in a closed loop, contention ends with each prompt, so
    the gaps beside one (ITL p99) stand for the TPOT: they fall with every smaller budget, and TTFT rises."""
    case = cases["A01"]
    alone_s = case["workload"]["decode_alone_tpot_ms"] * MS
    low_s, high_s = (published(case, arm, "tpot_ms") * MS for arm in ("256", "2048"))
    token_s = (high_s - low_s) / (2048 - 256)
    model = linear_model(alone_s, token_s=token_s, mixed_s=low_s - 256 * token_s - alone_s)
    long_s, short_s = np.arange(60) * 20.0, np.arange(48) * 25.0 + 3.0
    some = traffic(
        np.concatenate([long_s, short_s]),
        np.concatenate([np.full(60, 16_384), np.full(48, 128)]),
        np.concatenate([np.ones(60), np.full(48, 512)]),
    )
    space = SearchSpace((260, 516, 1028, 2052), max_num_seqs=(100,), max_replicas=1, async_scheduling=False)
    result = ask(some, model, space, "itl:p99:100", "ttft:p90:10000")
    by_budget = sorted(result.candidates, key=lambda c: c.knobs.profile.budget)
    assert [c.status for c in by_budget] == ["meets"] * 4
    for smaller, larger in pairwise(by_budget):
        assert value(smaller, "itl:p99") < value(larger, "itl:p99")
        assert value(smaller, "ttft:p90") > value(larger, "ttft:p90")


def test_a14_two_gpus_at_a_low_rate_are_not_worth_it(cases: Mapping[str, Any]) -> None:
    """One A10 serves it; separate pools on two have a longer TTFT and a shorter TPOT, and are never the answer."""
    case = cases["A14"]
    decode_s = published(case, "S2-agg", "itl_p50_ms") * MS
    token_s = (published(case, "S2-agg", "ttft_p50_ms") * MS - decode_s) / 256
    hand_over_s = (
        published(case, "S2-1p1d-rdma", "ttft_p50_ms") - published(case, "S2-agg", "ttft_p50_ms")
    ) * MS
    speed = 256 * PRESETS["llama-3.1-8b"].kv_bytes_per_token() / (hand_over_s - decode_s) / 1e9
    some = traffic(poisson(2.02, 200), np.full(200, 256), np.full(200, 6))
    space = SearchSpace((512,), max_num_seqs=(256,), max_replicas=2, local_prefill_tokens=(0,))
    goals = ("ttft:p50:10", "tpot:p50:10")
    result = ask(some, linear_model(decode_s, token_s=token_s), space, *goals, link=Link.entered(speed))
    assert result.verdict.choice is not None
    assert result.verdict.choice.candidate.deployment == "aggregated"
    assert result.verdict.choice.candidate.replicas == 1
    one, two = result.candidates[0], next(c for c in result.candidates if c.pools)
    assert value(two, "ttft:p50") > value(one, "ttft:p50")
    assert value(two, "tpot:p50") < value(one, "tpot:p50")
    assert result.verdict.other is not None
    assert result.verdict.other.gpus == 2


def test_a14_long_prompts_chunks_shorten_gaps_and_slow_links_lengthen_the_first_token(
    cases: Mapping[str, Any],
) -> None:
    """Prompts of 1,024 (rows L): chunking lowers ITL p99, and 1P1D has the later first token, over TCP more so."""
    case = cases["A14"]
    decode_s = published(case, "S2-agg", "itl_p50_ms") * MS
    token_s = (published(case, "S2-agg", "ttft_p50_ms") * MS - decode_s) / 256
    some = traffic(poisson(2.02, 200), np.full(200, 1024), np.full(200, 6))
    space = SearchSpace((264, 1100), max_num_seqs=(256,), max_replicas=2, local_prefill_tokens=(0,))
    model = linear_model(decode_s, token_s=token_s)
    goals = ("ttft:p50:60", "itl:p99:60")
    by_link = {
        gb_per_s: ask(some, model, space, *goals, link=Link.entered(gb_per_s)) for gb_per_s in (10.0, 0.5)
    }
    assert all(r.verdict.choice and r.verdict.choice.candidate.replicas == 1 for r in by_link.values())
    chunked, whole = (c for c in by_link[10.0].candidates if not c.pools)
    assert value(chunked, "itl:p99") < value(whole, "itl:p99")
    rdma, tcp = (
        min(value(c, "ttft:p50") for c in result.candidates if c.pools) for result in by_link.values()
    )
    assert tcp > rdma > value(whole, "ttft:p50")


def test_a16_rates_and_prompts_up_to_the_knee_and_beyond(cases: Mapping[str, Any]) -> None:
    """1P1D at 2, 4 and 6 requests a second waits longer each time, and at 8 serves less than is offered; so do prompts
    of 2,048 and 4,096 at 2 a second (published: 1.70 of 2 served)."""
    case = cases["A16"]
    model = linear_model(
        published(case, "q2", "itl_p50_ms") * MS, token_s=published(case, "q2", "ttft_p50_ms") * MS / 1024
    )
    space = SearchSpace((8192,), max_num_seqs=(256,), max_replicas=2, local_prefill_tokens=(0,))

    def pair(rate: float, isl: int) -> CandidateResult:
        some = traffic(poisson(rate, 400), np.full(400, isl), np.full(400, 6))
        result = ask(some, model, space, "ttft:p50:86000", link=Link.entered(50.0))
        return next(c for c in result.candidates if c.pools)

    by_rate = {rate: pair(rate, 1024) for rate in (2.02, 4.02, 5.98, 8.0)}
    assert [c.status for c in by_rate.values()] == ["meets", "meets", "meets", "saturated"]
    waits = [value(c, "ttft:p50") for rate, c in by_rate.items() if rate < 8.0]
    assert waits == sorted(waits)
    assert [pair(2.02, isl).status for isl in (2048, 4096)] == ["meets", "saturated"]


def test_a16_beyond_the_knee_is_infeasible_never_a_latency(cases: Mapping[str, Any]) -> None:
    """1P1D: prompts of 8,192 at 2 requests/s are more than is served; at 1,024 they are not."""
    case = cases["A16"]
    per_token_s = published(case, "q2", "ttft_p50_ms") * MS / 1024
    decode_s = published(case, "q2", "itl_p50_ms") * MS
    space = SearchSpace((8192,), max_num_seqs=(256,), max_replicas=2, local_prefill_tokens=(0,))
    statuses = {}
    for isl in (1024, 8192):
        some = traffic(poisson(2.02, 200), np.full(200, isl), np.full(200, 6))
        model = linear_model(decode_s, token_s=per_token_s)
        result = ask(some, model, space, "ttft:p50:86000", link=Link.entered(50.0))
        pair = next(c for c in result.candidates if c.pools)
        statuses[isl] = pair.status
        if isl == 8192:
            assert not result.feasible
            assert all(p.predicted_s is None for c in result.candidates for p in c.predictions)
    assert statuses == {1024: "meets", 8192: "saturated"}


def test_a35_more_sequences_serve_more_and_wait_longer(cases: Mapping[str, Any]) -> None:
    """192 sequences sustain a rate at which 128 saturate; below it their TPOT is no shorter.

    A request costs 266 tokens and 62 shares of a step's 4.8 ms: 128 sequences serve 91 a second, 192 serve 98.
    """
    model = linear_model(16.06e9 / 3.35e12, token_s=2 * 8.03e9 / (0.5 * 989e12))
    space = SearchSpace((8192,), max_num_seqs=(128, 192), max_replicas=1)

    def at(rate: float) -> tuple[CandidateResult, CandidateResult]:
        count = int(rate * 40)
        some = traffic(np.arange(count) / rate, np.full(count, 204), np.full(count, 62))
        few, many = ask(some, model, space, "tpot:p50:1000").candidates
        return few, many

    served = {rate: [c.status for c in at(rate)] for rate in (60.0, 94.0, 95.0, 96.0)}
    most = [max(rate for rate in range(80, 112, 4) if at(float(rate))[i].status == "meets") for i in (0, 1)]
    assert 1.0 < most[1] / most[0] <= 1.2, "published: 1.116 times as many requests a second"
    assert served[60.0] == ["meets", "meets"]
    assert any(both == ["saturated", "meets"] for both in served.values())
    assert not any(both == ["meets", "saturated"] for both in served.values())
    few, many = at(88.0)
    assert few.status == many.status == "meets"
    assert value(many, "tpot:p50") >= value(few, "tpot:p50")
    assert cases["A35"]["knob"] == "max_num_seqs"


@pytest.mark.parametrize("rate_per_s", [12.0, 20.0])
def test_with_two_gpus_and_the_chat_preset_separate_pools_win_only_where_the_gaps_need_them(
    rate_per_s: float,
) -> None:
    """Llama-3.1-8B in bf16 on an H100 by its data sheet (weights read once, half the peak for prompts). Over a sweep of
    limits on ITL p99 the answer is two pools exactly where no two replicas alike hold the limit and the pools do. At 20
    a second two replicas are needed either way, and where both hold it, the pools' margin is the wider one."""
    model = linear_model(16.06e9 / 3.35e12, token_s=2 * 8.03e9 / (0.5 * 989e12))
    chat = synthesise("chat", requests=400, rate_per_s=rate_per_s, seed=1)
    space = SearchSpace((256, 512, 1024), max_num_seqs=(64, 128), max_replicas=2, local_prefill_tokens=(0,))
    told = {}
    for limit_ms in (4.0, 5.0, 5.5, 6.0, 8.0, 20.0):
        result = ask(chat, model, space, "ttft:p95:1", f"itl:p99:{limit_ms / 1e3}", link=Link.entered(50.0))
        alike = any(c.status == "meets" for c in result.candidates if not c.pools)
        pools = any(c.status == "meets" for c in result.candidates if c.pools)
        choice = result.verdict.choice
        told[limit_ms] = choice.candidate.deployment if choice else "nothing"
        expected = "aggregated" if alike else "disaggregated" if pools else "nothing"
        assert told[limit_ms] == expected
        if alike:
            assert result.verdict.lost, "it says why pools are not the answer"
    answers = list(told.values())
    order = ["nothing", "disaggregated", "aggregated"]
    assert sorted(answers, key=order.index) == answers, "from too tight over what only pools hold to lax"
    assert set(answers) == set(order)
