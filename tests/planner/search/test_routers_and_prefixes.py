"""Routers as a knob, and prompts found in the prefix caches of separate pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from planner.search import (
    Conditions,
    Link,
    PlanResult,
    SearchSpace,
    SpaceError,
    parse_objectives,
    plan,
    prepare,
)
from planner.search.combinations import Candidate
from planner.search.evaluate import evaluate_candidate
from planner.simulation.cluster.deployment import (
    LEAST_TOKENS,
    PREFIX_AWARE,
    ROUND_ROBIN,
    Aggregated,
    Disaggregated,
    HandOff,
    Network,
    pool,
)
from planner.simulation.kernel.cluster import simulate as simulate_cluster
from planner.traffic import Traffic
from planner.traffic.model import PrefixHashes

FAST = Link.entered(50.0, 0.001)
SPACE = SearchSpace((256, 1024), max_num_seqs=(16,), max_replicas=3, local_prefill_tokens=(0,))


@pytest.fixture
def sessions(traffic: Callable[..., Traffic]) -> Traffic:
    """Twelve conversations whose turns begin with the same 480 of some 800 tokens."""
    some = traffic(requests=240, rate_per_s=8.0)
    random = np.random.default_rng(0)
    blocks = 30
    prompts = 16 * blocks + random.integers(160, 480, some.requests)
    whose = random.integers(0, 12, some.requests)
    flat = (whose[:, None] * blocks + np.arange(blocks)).ravel().astype(np.int64)
    offsets = (np.arange(some.requests + 1) * blocks).astype(np.int64)
    return replace(some, prompt_tokens=prompts, prefix_hashes=PrefixHashes(flat, offsets, 16))


def ready(
    some: Traffic, model: Any, architecture: Architecture, space: SearchSpace, **conditions: Any
) -> Any:
    goals = parse_objectives(["ttft:p95:1", "itl:p99:1"])
    return prepare(some, model, 40_000, architecture, goals, space, max_model_len=8192, refits=0,
                   conditions=Conditions(**conditions)).hand  # fmt: skip


@pytest.mark.parametrize("router", [LEAST_TOKENS, PREFIX_AWARE])
def test_a_router_is_the_simulators_own(
    router: str, sessions: Traffic, model: Any, architecture: Architecture
) -> None:
    space = replace(SPACE, routers=(ROUND_ROBIN, router))
    hand = ready(sessions, model, architecture, space, prefix="trace", link=FAST)
    assert [c.router for c in hand.combinations] == [ROUND_ROBIN] * 2 + [router] * 2
    chosen = hand.combinations[-1]
    found = evaluate_candidate(hand.bench, Candidate(chosen.knobs, 3, router=router))
    requests = hand.bench.requests
    out = simulate_cluster(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None,
        Aggregated(pool(3, chosen.knobs, model.arrays()), router), prefix=requests.prefix,
    )  # fmt: skip
    assert found.values_s["ttft:p95"] == np.percentile(out.requests.ttft_s(), 95.0)
    assert found.values_s["itl:p99"] == out.requests.percentile("itl", 99.0)
    alone = [
        evaluate_candidate(hand.bench, Candidate(chosen.knobs, 1, router=r)) for r in (ROUND_ROBIN, router)
    ]
    assert alone[0] == alone[1], "one replica needs no router"


def test_separate_pools_find_prompts_again(sessions: Traffic, model: Any, architecture: Architecture) -> None:
    """What the cluster simulator says of the same pools with caches; and without them the first token comes later."""
    hand = ready(sessions, model, architecture, SPACE, prefix="trace", link=FAST)
    cold = ready(sessions, model, architecture, SPACE, link=FAST)
    requests = hand.bench.requests
    for pools, uncached in zip(hand.pairs, cold.pairs, strict=True):
        assert pools.prefill.prefix_caching
        found = evaluate_candidate(hand.bench, Candidate(pools.decode, 3, pools, 2))
        out = simulate_cluster(
            requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None,
            Disaggregated(pool(2, pools.prefill, model.arrays()), pool(1, pools.decode, model.arrays()),
                          HandOff.vllm(float(architecture.kv_bytes_per_token())), Network.cards(FAST.table)),
            prefix=requests.prefix,
        )  # fmt: skip
        assert out.requests.hit_rate > 0.2
        assert found.values_s["ttft:p95"] == np.percentile(out.requests.ttft_s(), 95.0)
        without = evaluate_candidate(cold.bench, Candidate(uncached.decode, 3, uncached, 2))
        assert found.values_s["ttft:p95"] < without.values_s["ttft:p95"]
    shared = ready(sessions, model, architecture, SPACE, prefix="share", hit_share=0.5, link=FAST)
    pools = shared.pairs[0]
    assumed = evaluate_candidate(shared.bench, Candidate(pools.decode, 3, pools, 2))
    assert assumed.values_s["ttft:p95"] < without.values_s["ttft:p95"]


def ask(some: Traffic, model: Any, architecture: Architecture, space: SearchSpace, *texts: str) -> PlanResult:
    return plan(some, model, 40_000, architecture, parse_objectives(texts), space, refits=2, threads=2,
                max_model_len=8192, conditions=Conditions(prefix="trace"))  # fmt: skip


def test_a_router_is_recommended_where_it_is_needed_and_said(
    sessions: Traffic, model: Any, architecture: Architecture
) -> None:
    """A limit between what dealing in turn and what following the caches reaches on two replicas."""
    space = replace(SPACE, routers=(ROUND_ROBIN, PREFIX_AWARE), max_replicas=2, budgets_tokens=(1024,))
    both = ask(sessions, model, architecture, space, "ttft:p95:0.0001")
    reached = {c.pools or c.to_dict()["router"]: c.predictions[0].predicted_s for c in both.candidates}
    turn, aware = reached[ROUND_ROBIN], reached[PREFIX_AWARE]
    assert turn is not None
    assert aware is not None
    assert aware < turn
    result = ask(sessions, model, architecture, space, f"ttft:p95:{(turn + aware) / 2}")
    choice = result.verdict.choice
    assert choice is not None
    assert choice.candidate.routed == PREFIX_AWARE
    assert "router prefix aware" in result.verdict.sentence
    assert any(
        "requests go where most of their prompt is cached" in remark for remark in result.verdict.remarks
    )
    assert result.summary_dict()["router"] == PREFIX_AWARE
    lax = ask(sessions, model, architecture, space, f"ttft:p95:{4 * turn}")
    assert lax.verdict.choice is not None
    assert lax.verdict.choice.candidate.routed == ROUND_ROBIN, "dealing in turn is simpler"


@pytest.mark.parametrize("routers", [(), ("random",), (ROUND_ROBIN, ROUND_ROBIN)])
def test_routers_that_are_none_are_refused(routers: tuple[str, ...]) -> None:
    with pytest.raises(SpaceError) as caught:
        replace(SPACE, routers=routers)
    assert caught.value.field == "routers"
    assert SearchSpace.from_dict(SPACE.to_dict()) == SPACE
