"""Speculative decoding in the decode pool of two: worked out on paper first, and reference against kernel.

Scheduling is synchronous, a block holds 4 tokens, KV caches have 1 byte per token, messages take no time. A prefill
step takes 1 s, a decode step 0.25 s. The drafter guesses 2 tokens unless said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from planner.simulation.cluster import reference
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PULL,
    PUSH_CHUNKS,
    Aggregated,
    Disaggregated,
    HandOff,
    Loss,
    PrefixPool,
    Replica,
)
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.rules import rules_of
from planner.simulation.cluster.workload import that_caches_as
from planner.simulation.kernel import cluster
from planner.simulation.knobs import SpeculativeConfig, VllmKnobs
from tests.planner.simulation.cluster_workloads import assert_same_cluster, random_cluster
from tests.planner.simulation.hand_worked import (
    FAR_APART,
    A,
    B,
    Simulate,
    both,
    engine,
    near,
    prompts_of,
    requests,
    wire,
)
from tests.planner.simulation.workloads import guessing, random_config, random_prefix

CLUSTERS, PART = 400, 100
ONE = requests((0.0, 9, 7))


def prefills() -> Replica:
    return replace(engine(), step_time=constant_model(1.0))


def guesses(rate: float, drafts: int = 2, method: str = "ngram", **others: Any) -> Replica:
    config = SpeculativeConfig(drafts, rate, method)
    replica = engine(**others)
    return Replica(replace(replica.knobs, speculative_config=config), constant_model(0.25))


def pools(mode: str, decode: Replica, bytes_per_s: float = 4.0) -> Disaggregated:
    return Disaggregated((prefills(),), (decode,), HandOff(mode, 1.0), wire(bytes_per_s))


def rows_of(outcome: ClusterOutcome) -> list[list[tuple[int, int, int]]]:
    """(request, tokens, cached) of the decode replica's steps that are not empty."""
    record = outcome.decode[0].record
    assert record is not None
    rows = list(zip(record.request.tolist(), record.tokens.tolist(), record.cached.tolist(), strict=True))
    steps = [rows[start:stop] for start, stop in zip(record.offsets, record.offsets[1:], strict=False)]
    return [step for step in steps if step]


@both
def test_after_a_pull_the_first_row_is_padded(simulate: Simulate) -> None:
    """Prefill 0-1, pull of 8 tokens 1-3. The prompt's last token and 2 drafts that nobody guessed until 3.25: the first
    token. Then 3 tokens a step: 4 at 3.5, 7 at 3.75."""
    outcome = simulate(*ONE, pools(PULL, guesses(1.0)), record_steps=True)
    assert rows_of(outcome) == [[(0, 3, 8)], [(0, 3, 9)], [(0, 3, 12)]]
    assert outcome.kv_ready_s.tolist() == near(3.0)
    assert outcome.requests.first_token_s.tolist() == near(3.25)
    assert outcome.requests.done_s.tolist() == near(3.75)
    assert outcome.requests.gap_counts.sum() == 2
    assert (outcome.requests.verifications, outcome.requests.accepted_tokens) == (2, 4)
    # 3 blocks for the 9 known tokens when staged; 11 and 12 tokens need no more, 15 need a fourth
    record = outcome.decode[0].record
    assert record is not None
    assert record.free_blocks.tolist() == [997, 997, 997, 996]
    rejected = simulate(*ONE, pools(PULL, guesses(0.0)), record_steps=True)
    assert [row[0][1:] for row in rows_of(rejected)] == [(3, 8 + step) for step in range(7)]
    assert rejected.requests.done_s.tolist() == near(3.0 + 7 * 0.25)


@both
@pytest.mark.parametrize(
    ("mode", "first_s", "ready_s"), [(AFTER_PREFILL, 1.0, 3.25), (PUSH_CHUNKS, 3.25, 3.25)]
)
def test_the_prefill_side_s_first_token_is_as_before(
    simulate: Simulate, mode: str, first_s: float, ready_s: float
) -> None:
    """9 tokens are moved, 1-3.25. Token 2 at 3.5, of a padded row; 5 at 3.75; at 4.0 two more are wanted of three."""
    outcome = simulate(*ONE, pools(mode, guesses(1.0)), record_steps=True)
    assert rows_of(outcome) == [[(0, 3, 9)], [(0, 3, 10)], [(0, 3, 13)]]
    assert outcome.kv_ready_s.tolist() == near(ready_s)
    assert outcome.requests.first_token_s.tolist() == near(first_s)
    assert outcome.requests.done_s.tolist() == near(4.0)
    assert (outcome.requests.verifications, outcome.requests.accepted_tokens) == (2, 3)


@both
def test_a_hand_off_is_staged_where_first_rows_have_room(simulate: Simulate) -> None:
    """Two prompts of 9 tokens, prefilled together until 1. Each takes 3 blocks and, with 2 drafts and 2 slots for the
    drafter's, keeps 2 for its first row. With 9 blocks the second is not staged beside the first (3 + 2 x 2 of the 6
    that are left), though its prompt has room; with 10 it is. At 3.0 the first runs, with 4 blocks for its 8 + 3 + 2
    tokens, and the second is staged: 3 + 2 of the 5 that are left."""
    load = requests((0.0, 9, 1), (0.0, 9, 1))
    for blocks, second_s in ((9, 3.0), (10, 1.0)):
        decode = guesses(0.5, method="draft_model", blocks=blocks)
        outcome = simulate(*load, pools(PULL, decode))
        assert outcome.transfer_start_s.tolist() == near(1.0, second_s)
    plain = Replica(engine(blocks=6).knobs, constant_model(0.25))
    assert simulate(*load, pools(PULL, plain)).transfer_start_s.tolist() == near(1.0, 1.0)


@both
def test_a_drafter_that_reads_ahead_pulls_the_last_block_it_has_again(simulate: Simulate) -> None:
    """As without a drafter (see test_cluster_prefix_by_hand), but of the 16 tokens that the decode side has of B and C
    it uses 12: of B 12 are pulled, of C 4. What the prefill side finds is as before."""
    prefix = prompts_of(FAR_APART, A, B, A)
    for method, present in (("ngram", [0, 16, 16]), ("eagle", [0, 12, 12])):
        deployment = Disaggregated(
            (engine(),), (guesses(0.5, method=method),), HandOff(PULL, 1.0), wire(16.0)
        )
        outcome = simulate(*FAR_APART, deployment, prefix=prefix)
        assert outcome.requests.hit_tokens.tolist() == [0, 16, 16]
        assert outcome.present_tokens.tolist() == present
        moved = (np.array([16, 24, 16]) - present).tolist()
        assert outcome.moved_bytes.tolist() == near(*moved)


@both
def test_beside_a_shared_prefix_pool_the_last_block_of_a_hit_is_computed_anew(simulate: Simulate) -> None:
    """vLLM's names cover the next token only where nothing is loaded from elsewhere. C finds 12 tokens on its replica
    and fetches the other 4 from the pool."""
    shared = PrefixPool(wire(16.0).table, 16.0, 1.0)
    deployment = Aggregated((guesses(0.5, method="eagle"),), prefix_pool=shared)
    outcome = simulate(*FAR_APART, deployment, prefix=prompts_of(FAR_APART, A, B, A))
    assert outcome.requests.hit_tokens.tolist() == [0, 12, 12]
    assert outcome.pool_hit_tokens.tolist() == [0, 4, 4]


@both
def test_a_lost_decode_replica_s_request_goes_on_with_its_luck(simulate: Simulate) -> None:
    """At rate 1 it has 4 tokens when its replica is lost in the step that ends at 3.75 with 7. It has all it wants by
    then; lost a step before, the other three come from the second replica, which computes prompt and outputs anew."""
    decode = guesses(1.0)
    deployment = replace(pools(PULL, decode), decode=(decode, decode))
    late = simulate(*ONE, deployment, losses=[Loss(3.6, 0)])
    assert late.requests.done_s.tolist() == near(3.75)
    early = simulate(*ONE, deployment, losses=[Loss(3.4, 0)])
    # the step under way ends at 3.5 with 4 tokens; 13 tokens until 3.75, which emit the fifth; then two more
    assert early.lost_kv.tolist() == [1]
    assert early.requests.done_s.tolist() == near(4.0)


def random_pools(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A random cluster that caches prefixes, whose decode (or only) pool guesses; drafters of one kind."""
    (*columns, deployment), options = random_cluster(seed, cached=seed % 4 > 0)
    rng = np.random.default_rng(seed)
    method = random_config(rng, seed).method

    def guessing_replicas(replicas: tuple[Replica, ...]) -> tuple[Replica, ...]:
        made = []
        for replica in replicas:
            config = replace(random_config(rng, seed), method=method)
            sits_out = method != "eagle" and rng.random() < 0.2
            assert isinstance(replica.knobs, VllmKnobs)
            made.append(replace(replica, knobs=guessing(replica.knobs, None if sits_out else config)))
        return tuple(made)

    if isinstance(deployment, Aggregated):
        deployment = replace(deployment, replicas=guessing_replicas(deployment.replicas))
    else:
        deployment = replace(deployment, decode=guessing_replicas(deployment.decode))
    if columns[3] is not None or options["classes"]:  # see workloads.speculating
        columns[0] = columns[0] + 1e-6 * np.arange(len(columns[0]))
    caches = that_caches_as(rules_of(deployment))
    if "prefix" in options and caches.named_ahead:
        again = np.random.default_rng(seed + 5)
        options["prefix"] = random_prefix(again, columns[1], caches.block_size, caches.named_ahead)
    return (*columns, deployment), options


@pytest.mark.parametrize("first", range(0, CLUSTERS, PART))
def test_random_clusters_agree(first: int) -> None:
    """Bit for bit; and they meet preemption, losses, drafts in both topologies, and hits on both sides."""
    outcomes = []
    for seed in range(first, first + PART):
        arguments, options = random_pools(seed)
        options |= {"record_steps": seed % 3 == 0, "bin_s": (0.0, 2.0**-6)[seed % 2]}
        expected = reference.simulate(*arguments, **options)
        assert_same_cluster(expected, cluster.simulate(*arguments, **options))
        outcomes.append(expected)
    two = [outcome for outcome in outcomes if outcome.prefill]
    assert sum(outcome.requests.accepted_tokens for outcome in two) > 3_000
    assert sum(outcome.requests.preemptions.sum() for outcome in two) > 20
    assert sum(outcome.lost_kv.sum() for outcome in two) > 10
    assert sum(outcome.present_tokens.sum() for outcome in two) > 1_000
    assert sum(outcome.requests.rehit_tokens.sum() for outcome in two) > 200
    assert sum(outcome.requests.accepted_tokens for outcome in outcomes if not outcome.prefill) > 300


@pytest.mark.parametrize("mode", [PULL, AFTER_PREFILL, PUSH_CHUNKS])
@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_tokens_per_verification(mode: str, rate: float) -> None:
    """(1 - a^(k+1)) / (1 - a) within 1 % in the decode pool, with caches and preemption."""
    count, drafts = 150, 4
    rng = np.random.default_rng(4)
    prompts, outputs = rng.integers(200, 400, count), np.full(count, 2000)
    load = np.arange(count) * 0.05, prompts, outputs, None
    knobs = VllmKnobs(4096, 256, 3_000, prefix_caching=True)
    model = linear_model(0.01, token_s=1e-6)
    fast = guessing(knobs, SpeculativeConfig(drafts, rate, "eagle", seed=3))
    deployment = Disaggregated(
        (Replica(knobs, model),), (Replica(fast, model),) * 2, HandOff(mode, 1e4), wire(1e9)
    )
    outcome = cluster.simulate(*load, deployment).requests
    assert outcome.preemptions.sum() > 20
    expected = (1 - rate ** (drafts + 1)) / (1 - rate)
    assert outcome.tokens_per_verification == pytest.approx(expected, rel=0.01)
