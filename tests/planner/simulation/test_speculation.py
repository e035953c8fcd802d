"""Speculative decoding: hand-worked schedules, the mean of accepted tokens, and an account of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.steptime.scalar import constant_model, linear_model
from planner.simulation import kernel, reference
from planner.simulation.cluster import reference as cluster_reference
from planner.simulation.cluster.deployment import Aggregated, Disaggregated, Replica
from planner.simulation.kernel import cluster as cluster_kernel
from planner.simulation.knobs import SpeculativeConfig, VllmKnobs
from planner.simulation.luck import is_accepted, keys_of, threshold_of
from planner.simulation.outcome import Outcome
from tests.planner.simulation.cluster_workloads import assert_same_cluster, random_cluster
from tests.planner.simulation.workloads import (
    assert_same,
    guessing,
    random_config,
    random_workload,
    speculating,
)

both = pytest.mark.parametrize("simulate", [reference.simulate, kernel.simulate], ids=["reference", "kernel"])
Simulate = Callable[..., Outcome]
WORKLOADS = 100
CLUSTERS = 300


def knobs(
    drafts: int, rate: float, *, lag: bool = False, budget: int = 100, method: str = "eagle3", **others: Any
) -> VllmKnobs:
    config = SpeculativeConfig(drafts, rate, method)
    return VllmKnobs(budget, 10, 100, block_size=1, async_scheduling=lag, speculative_config=config, **others)


def run(simulate: Simulate, engine: VllmKnobs, *requests: tuple[int, int], **options: Any) -> Outcome:
    """Requests as (prompt, output), all there at 0; a step lasts 1 s."""
    prompts, outputs = (np.array(column) for column in zip(*requests, strict=True))
    options = {"step_time": constant_model(1.0), **options}
    return simulate(np.zeros(len(prompts)), prompts, outputs, None, engine, record_steps=True, **options)


def schedule_of(outcome: Outcome) -> list[list[tuple[int, int]]]:
    record = outcome.record
    assert record is not None
    rows = list(zip(record.request.tolist(), record.tokens.tolist(), strict=True))
    return [rows[start:stop] for start, stop in zip(record.offsets, record.offsets[1:], strict=False)]


def tokens_of(outcome: Outcome) -> list[int]:
    """Of a single request's steps."""
    return [sum(tokens for _, tokens in rows) for rows in schedule_of(outcome)]


def free_of(outcome: Outcome) -> list[int]:
    assert outcome.record is not None
    return outcome.record.free_blocks.tolist()


@both
def test_accepted_drafts_come_out_together(simulate: Simulate) -> None:
    """4 prompt tokens, 7 outputs: one with the prompt, then 1 + 2 drafts in each of two steps."""
    outcome = run(simulate, knobs(2, 1.0), (4, 7))
    assert tokens_of(outcome) == [4, 3, 3]
    assert (outcome.first_token_s[0], outcome.done_s[0]) == (1.0, 3.0)
    assert (outcome.verifications, outcome.draft_tokens, outcome.accepted_tokens) == (2, 4, 4)
    assert outcome.tokens_per_verification == 3.0
    # two gaps of a second for the reader, six tokens in two seconds
    assert outcome.gap_counts.sum() == 2
    assert outcome.max_gap_s[0] == 1.0
    assert outcome.tpot_s()[0] == pytest.approx(2 / 6)


@both
def test_rejected_drafts_are_computed_for_nothing(simulate: Simulate) -> None:
    outcome = run(simulate, knobs(2, 0.0), (4, 4))
    assert tokens_of(outcome) == [4, 3, 3, 3]
    assert outcome.record is not None
    assert outcome.record.cached.tolist() == [0, 4, 5, 6]
    assert outcome.computed_tokens == 13
    assert (outcome.verifications, outcome.draft_tokens, outcome.accepted_tokens) == (3, 6, 0)


@both
def test_nothing_is_emitted_beyond_the_output(simulate: Simulate) -> None:
    """One token is left, but vLLM schedules all drafts."""
    outcome = run(simulate, knobs(4, 1.0), (4, 2))
    assert tokens_of(outcome) == [4, 5]
    assert outcome.done_s[0] == 2.0
    assert outcome.accepted_tokens == 0


@both
def test_blocks_of_rejected_drafts_are_kept_and_the_drafter_wants_some_too(simulate: Simulate) -> None:
    """Blocks of one token. A running request asks for its row and, if the drafter has a KV cache, for the drafts to
    come, from the prompt's step on."""
    assert free_of(run(simulate, knobs(2, 0.0), (4, 4))) == [100 - (4 + 2), 100 - (4 + 3 + 2), 90, 89]
    assert free_of(run(simulate, knobs(2, 0.0, method="ngram"), (4, 4))) == [96, 93, 92, 91]
    assert free_of(run(simulate, knobs(2, 1.0), (4, 9))) == [94, 91, 88, 85]


@both
def test_asynchronously_drafts_in_flight_are_taken_to_be_accepted(simulate: Simulate) -> None:
    """Schedule 2 is made when step 1 has its 3 tokens in flight: the scheduler counts 7 computed, though it is 5."""
    rejected = run(simulate, knobs(2, 0.0, lag=True), (4, 4))
    assert tokens_of(rejected) == [4, 3, 3, 3, 0]
    assert free_of(rejected) == [94, 100 - (4 + 3 + 2), 100 - (7 + 3 + 2), 100 - (8 + 3 + 2), 87]
    assert rejected.record is not None
    assert rejected.record.cached.tolist() == [0, 4, 5, 6]


@both
def test_asynchronously_a_request_that_drafts_have_finished_gets_a_row_for_nothing(
    simulate: Simulate,
) -> None:
    """Its 7 tokens are out with step 2, but schedule 3 is made before that is known: 4 are."""
    outcome = run(simulate, knobs(2, 1.0, lag=True), (4, 7))
    assert tokens_of(outcome) == [4, 3, 3, 3]
    assert outcome.done_s[0] == 3.0
    assert outcome.makespan_s == 4.0
    assert (outcome.verifications, outcome.accepted_tokens) == (2, 4)
    # with one token to come and a step in flight it is known to be over
    assert tokens_of(run(simulate, knobs(2, 0.0, lag=True), (4, 2))) == [4, 3, 0]


@both
def test_the_budget_cuts_drafts(simulate: Simulate) -> None:
    """Budget 5, 3 drafts: the first request takes 4, the second checks none."""
    outcome = run(simulate, knobs(3, 0.0, budget=5), (1, 3), (1, 3))
    assert schedule_of(outcome) == [[(0, 1), (1, 1)], [(0, 4), (1, 1)], [(0, 4), (1, 1)]]
    assert outcome.verifications == 2


@both
def test_a_chunk_cap_cuts_drafts_too(simulate: Simulate) -> None:
    outcome = run(simulate, knobs(3, 1.0, long_prefill_token_threshold=2), (2, 5), (2, 1))
    assert schedule_of(outcome) == [[(0, 2), (1, 2)], [(0, 4)]]  # alone there is no cap
    outcome = run(simulate, knobs(3, 1.0, long_prefill_token_threshold=2), (2, 4), (2, 3))
    assert schedule_of(outcome) == [[(0, 2), (1, 2)], [(0, 2), (1, 2)], [(0, 4)]]


@both
def test_whoever_is_passed_over_keeps_the_drafts(simulate: Simulate) -> None:
    sync = run(simulate, knobs(3, 0.0, budget=4), (1, 3), (1, 3))
    assert schedule_of(sync) == [[(0, 1), (1, 1)], [(0, 4)], [(0, 4)], [(1, 4)], [(1, 4)]]
    lagged = run(simulate, knobs(3, 0.0, budget=4, lag=True), (1, 3), (1, 3))
    assert schedule_of(lagged) == [[(0, 1), (1, 1)], [(0, 4)], [(0, 4)], [(1, 4)], [(1, 4)], []]


@both
def test_a_newcomer_with_one_token_is_padded_beside_others(simulate: Simulate) -> None:
    """So that all rows of the step are alike: 3 drafts that are rejected whatever the rate, and guessed by nobody. Not
    beside a prompt that is still being computed, nor alone."""
    engine, arrival = knobs(3, 1.0), np.array([0.0, 0.5])
    options = {"step_time": constant_model(1.0), "record_steps": True}
    outcome = simulate(arrival, np.array([4, 1]), np.array([9, 2]), None, engine, **options)
    assert schedule_of(outcome) == [[(0, 4)], [(0, 4), (1, 4)], [(0, 4), (1, 4)]]
    assert outcome.first_token_s[1] == 2.0
    assert (outcome.verifications, outcome.draft_tokens, outcome.accepted_tokens) == (3, 9, 6)
    beside = replace(engine, max_num_batched_tokens=10)
    outcome = simulate(arrival, np.array([12, 1]), np.array([1, 1]), None, beside, **options)
    assert schedule_of(outcome) == [[(0, 10)], [(0, 2), (1, 1)]]
    assert schedule_of(run(simulate, engine, (1, 1))) == [[(0, 1)]]


@both
def test_a_newcomer_waits_for_the_budget_of_a_padded_row(simulate: Simulate) -> None:
    """Budget 6: beside a row of 4 a row of 4 has no room, though the one token would."""
    arrays = np.array([0.0, 0.5]), np.array([4, 1]), np.array([9, 1])
    outcome = simulate(*arrays, None, knobs(3, 1.0, budget=6), constant_model(1.0), record_steps=True)
    assert schedule_of(outcome) == [[(0, 4)], [(0, 4)], [(0, 4)], [(1, 1)]]


@both
def test_what_a_verification_costs(simulate: Simulate) -> None:
    """1 s + 10 s per token + 100 s per row + 1000 s per logit + 0.5 s for each token of context, and 2 drafts of
    7 s."""
    model = linear_model(1.0, token_s=10.0, row_s=100.0, logit_s=1000.0, decode_context_s=0.5)
    engine = knobs(2, 1.0)
    slow = replace(engine, speculative_config=SpeculativeConfig(2, 1.0, draft_step_s=7.0))
    outcome = run(simulate, slow, (4, 4), step_time=model)
    prompt_s, verification_s = 1.0 + 40.0 + 1000.0, 1.0 + 30.0 + 100.0 + 3000.0 + 2.0
    assert outcome.first_token_s[0] == pytest.approx(prompt_s + 14.0)
    assert outcome.done_s[0] == pytest.approx(prompt_s + verification_s + 28.0)
    assert outcome.busy_s == pytest.approx(outcome.done_s[0])
    assert run(simulate, engine, (4, 4), step_time=model).busy_s == pytest.approx(prompt_s + verification_s)


@both
@pytest.mark.parametrize("lag", [False, True])
def test_preemption_gives_everything_back_and_goes_on(simulate: Simulate, lag: bool) -> None:
    engine = replace(knobs(3, 0.6, lag=lag), num_blocks=60)
    outcome = run(simulate, engine, (10, 30), (10, 30), (10, 30))
    assert outcome.preemptions.sum() > 0
    check_account(outcome, engine)


@pytest.mark.parametrize("drafts", [1, 2, 4, 8])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.8, 0.95, 1.0])
def test_tokens_per_verification(drafts: int, rate: float) -> None:
    """(1 - a^(k+1)) / (1 - a) within 1 %; outputs are long, so that few verifications end with them."""
    count = 150
    engine = VllmKnobs(4096, 256, 100_000, speculative_config=SpeculativeConfig(drafts, rate, seed=3))
    ones = np.ones(count, dtype=np.int64)
    outcome = kernel.simulate(np.zeros(count), ones, 3000 * ones, None, engine, constant_model(0.01))
    expected = drafts + 1 if rate == 1.0 else (1 - rate ** (drafts + 1)) / (1 - rate)
    assert outcome.tokens_per_verification == pytest.approx(expected, rel=0.01)
    steps = (outcome.done_s - outcome.first_token_s) / 0.01
    assert (count * 2999) / steps.sum() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("lag", [False, True])
def test_no_drafts_are_no_speculation(lag: bool) -> None:
    """Bit for bit, whatever the rate."""
    for seed in range(20):
        arguments = random_workload(seed).arguments()
        plain = replace(arguments.pop("knobs"), async_scheduling=lag)
        without = replace(plain, speculative_config=SpeculativeConfig(0, 0.9, draft_step_s=1.0))
        one, other = (
            kernel.simulate(**arguments, knobs=each, record_steps=True) for each in (plain, without)
        )
        assert_same(one, other)


@pytest.mark.parametrize("lag", [False, True])
def test_drafts_that_are_never_accepted_change_no_time(lag: bool) -> None:
    """Where budget and pool are large and a step takes the same time whatever it holds."""
    rng = np.random.default_rng(8)
    arrival = np.cumsum(rng.exponential(0.5, 400))
    lengths = rng.integers(1, 60, (2, 400))
    plain = VllmKnobs(100_000, 500, 100_000, async_scheduling=lag)
    vain = replace(plain, speculative_config=SpeculativeConfig(5, 0.0))
    one, other = (
        kernel.simulate(arrival, *lengths, None, each, constant_model(0.3)) for each in (plain, vain)
    )
    np.testing.assert_array_equal(one.first_token_s, other.first_token_s)
    np.testing.assert_array_equal(one.done_s, other.done_s)
    np.testing.assert_array_equal(one.gap_counts, other.gap_counts)


def test_random_workloads_agree() -> None:
    """Reference and kernel, bit for bit; and the account is right."""
    preemptions = verifications = lagged = 0
    for seed in range(WORKLOADS):
        arguments = speculating(random_workload(seed, 20).arguments(), seed)
        kept = {"record_steps": True, "bin_s": (0.0, 2.0**-6)[seed % 2]}
        expected = reference.simulate(**arguments, **kept)
        assert_same(expected, kernel.simulate(**arguments, **kept))
        preemptions += int(expected.preemptions.sum())
        verifications += expected.verifications
        lagged += arguments["knobs"].async_scheduling
        check_account(expected, arguments["knobs"])
    assert preemptions > 50
    assert verifications > 5_000
    assert 30 < lagged < 70


def test_random_clusters_agree() -> None:
    """Aggregated replicas, each with its own drafts and rate; losses and limits included."""
    preemptions = moved = seen = accepted = 0
    for seed in range(CLUSTERS):
        (*columns, deployment), options = random_cluster(seed)
        if not isinstance(deployment, Aggregated):
            continue
        rng = np.random.default_rng(seed)
        replicas = []
        for replica in deployment.replicas:
            config = random_config(rng, seed) if rng.random() < 0.8 else None
            assert isinstance(replica.knobs, VllmKnobs)
            replicas.append(replace(replica, knobs=guessing(replica.knobs, config)))
        arguments = (*columns, Aggregated(tuple(replicas), deployment.router))
        options |= {"record_steps": True, "bin_s": (0.0, 2.0**-6)[seed % 2]}
        expected = cluster_reference.simulate(*arguments, **options)
        assert_same_cluster(expected, cluster_kernel.simulate(*arguments, **options))
        preemptions += int(expected.requests.preemptions.sum())
        moved += int(expected.lost_kv.sum())
        accepted += expected.requests.accepted_tokens
        seen += 1
    assert seen > 20
    assert min(preemptions, moved) > 10
    assert accepted > 1_000


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_tokens_and_blocks_are_conserved(seed: int) -> None:
    arguments = speculating(random_workload(seed, 20).arguments(), seed)
    check_account(kernel.simulate(**arguments, record_steps=True), arguments["knobs"])


def check_account(outcome: Outcome, engine: VllmKnobs) -> None:
    """Replay the record with the coins: progress is gapless, every output is emitted, blocks and budget suffice."""
    profile, record = engine.profile, outcome.record
    assert record is not None
    count = len(outcome.arrival_s)
    keys = keys_of(profile.luck_seed, np.arange(count)).tolist()
    threshold = threshold_of(profile.acceptance_rate)
    computed, emitted = [0] * count, [0] * count
    seated: set[int] = set()
    gaps = drafted = accepted_in_all = idle = 0
    for k in range(len(record.free_blocks)):
        for request in record.preempted[
            record.preempted_offsets[k] : record.preempted_offsets[k + 1]
        ].tolist():
            computed[request] = 0
            seated.discard(request)
        held = 0
        rows = range(record.offsets[k], record.offsets[k + 1])
        assert record.tokens[rows].sum() <= profile.budget
        for row in rows:
            request, tokens = int(record.request[row]), int(record.tokens[row])
            prompt, output = outcome.prompt_tokens[request], outcome.output_tokens[request]
            newcomer = request not in seated
            seated.add(request)
            if newcomer and profile.caching:
                computed[request] = int(record.cached[row])
                assert computed[request] % profile.block_size == 0
                assert computed[request] < prompt + emitted[request]
            assert record.cached[row] == computed[request]
            held += -(-(computed[request] + tokens) // profile.block_size)
            known = prompt + emitted[request]
            drafts = max(0, computed[request] + tokens - known)
            assert drafts <= profile.drafts
            if emitted[request] == output:  # finished in the step before, which was not known
                idle += 1
                continue
            computed[request] += tokens - drafts
            if computed[request] < known:
                continue
            if newcomer:  # padded with drafts of nobody
                assert drafts == 0 or tokens == 1 + profile.drafts
                drafts = 0
            accepted = 0
            while accepted < drafts and is_accepted(keys[request], emitted[request] + accepted, threshold):
                accepted += 1
            accepted = min(accepted, output - emitted[request] - 1)
            gaps += emitted[request] > 0
            drafted += drafts
            accepted_in_all += accepted
            emitted[request] += 1 + accepted
            computed[request] += accepted
        shared = held if profile.caching else 0  # blocks may be held by several
        assert 0 <= record.free_blocks[k] <= profile.num_blocks - held + shared
    np.testing.assert_array_equal(np.array(emitted)[outcome.served], outcome.output_tokens[outcome.served])
    assert outcome.gap_counts.sum() == gaps
    assert (outcome.draft_tokens, outcome.accepted_tokens) == (drafted, accepted_in_all)
    assert profile.lag == 1 or idle == 0
    assert (np.diff(record.scheduled_s) >= 0).all()
    assert (outcome.done_s >= outcome.first_token_s)[outcome.served].all()


def test_coins_depend_on_seed_request_and_place() -> None:
    half = threshold_of(0.5)
    coins = np.array(
        [
            [
                [is_accepted(key, token, half) for token in range(200)]
                for key in keys_of(seed, np.arange(50)).tolist()
            ]
            for seed in range(4)
        ]
    )
    assert coins.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(coins.size))
    flat = coins.reshape(200, 200).astype(float)
    correlations = np.corrcoef(flat)[np.triu_indices(200, 1)]
    assert np.abs(correlations).max() < 6 / np.sqrt(
        200
    )  # no two requests, and no two seeds, share their luck
    key = int(keys_of(1, np.array([5]))[0])
    assert all(is_accepted(key, token, threshold_of(1.0)) for token in range(100))
    assert not any(is_accepted(key, token, threshold_of(0.0)) for token in range(100))
    # a request's coins do not depend on which others are served
    np.testing.assert_array_equal(keys_of(1, np.array([3, 9])), keys_of(1, np.arange(10))[[3, 9]])


def test_requests_that_could_never_have_room_for_their_drafts_are_rejected() -> None:
    """8 + 8 - 1 tokens fit 15 blocks of one; 3 drafts and 3 slots for the drafter's need 6 more, in flight 3 again."""
    for lag, blocks in ((False, 21), (True, 24)):
        engine = replace(knobs(3, 0.5, lag=lag), num_blocks=blocks)
        assert run(kernel.simulate, engine, (8, 8)).rejected.tolist() == []
        assert run(kernel.simulate, replace(engine, num_blocks=blocks - 1), (8, 8)).rejected.tolist() == [0]


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("num_speculative_tokens", lambda: SpeculativeConfig(-1, 0.5)),
        ("acceptance_rate", lambda: SpeculativeConfig(1, 1.5)),
        ("acceptance_rate", lambda: SpeculativeConfig(1, float("nan"))),
        ("method", lambda: SpeculativeConfig(1, 0.5, "oracle")),
        ("draft_step_s", lambda: SpeculativeConfig(1, 0.5, draft_step_s=-1.0)),
        ("async_scheduling", lambda: knobs(1, 0.5, lag=True, method="ngram")),
        ("max_num_batched_tokens", lambda: knobs(4, 0.5, budget=4)),
    ],
)
def test_what_cannot_be(field: str, build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=field):
        build()


def test_clusters_refuse_what_they_do_not_simulate() -> None:
    model = constant_model(1.0)
    fast, slow = (
        Replica(replace(knobs(2, 0.5), speculative_config=SpeculativeConfig(2, 0.5, seed=seed)), model)
        for seed in (1, 2)
    )
    ones = np.ones(1, dtype=np.int64)
    arrays = (np.zeros(1), ones, ones, None)
    with pytest.raises(ValueError, match="the same seed"):
        cluster_kernel.simulate(*arrays, Aggregated((fast, slow)))
    (*_, deployment), _ = random_cluster(1)
    assert isinstance(deployment, Disaggregated)
    with pytest.raises(ValueError, match="in the decode pool only, not in the prefill pool"):
        cluster_kernel.simulate(*arrays, replace(deployment, prefill=(fast,), decode=(fast,)))
    caching, apart = (
        replace(fast, knobs=replace(fast.knobs, prefix_caching=True, speculative_config=config))
        for config in (SpeculativeConfig(2, 0.5, "mtp"), None)
    )
    with pytest.raises(ValueError, match="read ahead"):
        cluster_kernel.simulate(*arrays, Aggregated((caching, apart)))
