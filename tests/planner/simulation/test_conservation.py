"""What must hold for every run, checked on the recorded steps by an account of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.steptime.scalar import linear_model
from planner.simulation import kernel
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.profile import ESTIMATES, PREFILL_FIRST, Profile
from tests.planner.simulation.workloads import ENGINES, random_workload

REQUEST = st.tuples(st.floats(0, 30), st.integers(1, 60), st.integers(1, 30), st.integers(0, 2))
KNOBS = st.builds(
    VllmKnobs,
    max_num_batched_tokens=st.integers(1, 80),
    max_num_seqs=st.integers(1, 9),
    num_blocks=st.integers(1, 60),
    block_size=st.integers(1, 8),
    long_prefill_token_threshold=st.sampled_from([0, 0, 3, 20]),
    adaptive_threshold=st.booleans(),
    prefill_schedule_interval=st.integers(1, 3),
    policy=st.sampled_from(["fcfs", "priority"]),
    watermark=st.sampled_from([0.0, 0.1]),
    async_scheduling=st.booleans(),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(REQUEST, min_size=1, max_size=20), KNOBS)
def test_tokens_blocks_and_seats_are_conserved(
    requests: list[tuple[float, int, int, int]], knobs: VllmKnobs
) -> None:
    requests.sort(key=lambda request: request[0])
    arrival, prompts, outputs, priority = (np.array(column) for column in zip(*requests, strict=True))
    model = linear_model(0.7, token_s=0.01, row_s=0.02)
    outcome = kernel.simulate(arrival, prompts, outputs, priority, knobs, model, record_steps=True)
    impossible = -(-(prompts + outputs - 1) // knobs.block_size) > knobs.num_blocks
    np.testing.assert_array_equal(outcome.rejected, np.flatnonzero(impossible))
    computed = check_steps(outcome, knobs.profile)
    served = outcome.served
    assert computed == dict.fromkeys(np.flatnonzero(served).tolist(), 0)  # all were released
    needed = int((prompts + outputs - 1)[served].sum())
    assert outcome.computed_tokens >= needed
    if outcome.preemptions.sum() == 0:
        assert outcome.computed_tokens == needed  # every token exactly once
    assert outcome.gap_counts.sum() == (outputs[served] - 1).sum()
    check_times(outcome)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_every_engine_conserves_tokens_blocks_and_seats(engine: str, seed: int) -> None:
    arguments = random_workload(seed, 20, engine).arguments()
    outcome = kernel.simulate(**arguments, record_steps=True)
    computed = check_steps(outcome, arguments["knobs"].profile)
    served = outcome.served
    assert computed == dict.fromkeys(np.flatnonzero(served).tolist(), 0)
    needed = int((outcome.prompt_tokens + outcome.output_tokens - 1)[served].sum())
    assert outcome.computed_tokens == needed or outcome.preemptions.sum() > 0
    assert outcome.gap_counts.sum() == (outcome.output_tokens[served] - 1).sum()


def check_steps(outcome: Outcome, profile: Profile) -> dict[int, int]:
    """Replay the record: progress is gapless, blocks are what is held, seats and budget are kept to.

    Returns each request's tokens in the pool at the end.
    """
    record = outcome.record
    assert record is not None
    requests = np.flatnonzero(outcome.served).tolist()
    computed, emitted = dict.fromkeys(requests, 0), dict.fromkeys(requests, 0)
    begun: set[int] = set()  # in the middle of a prompt, or of a recompute
    seated: set[int] = set()
    finished: list[set[int]] = []
    for k in range(len(record.free_blocks)):
        due = len(finished) - 1 - profile.lag
        for request in finished[due] if due >= 0 else ():
            computed[request] = 0
            seated.discard(request)
        lost = slice(record.preempted_offsets[k], record.preempted_offsets[k + 1])
        for request in record.preempted[lost].tolist():
            assert request in seated
            computed[request] = 0
            seated.discard(request)
            begun.discard(request)
        finished.append(set())
        rows = range(record.offsets[k], record.offsets[k + 1])
        decodes = int(record.decode[rows].sum())
        alone = len(rows) == 1 and profile.admission == ESTIMATES and not profile.chunked
        if not alone:  # a whole prompt may be larger than the budget
            check_budget(profile, int(record.tokens[rows].sum()) - decodes, decodes)
        for row in rows:
            request = int(record.request[row])
            assert record.cached[row] == computed[request]
            computed[request] += int(record.tokens[row])
            seated.add(request)
            begun.add(request)
            if computed[request] == outcome.prompt_tokens[request] + emitted[request]:
                emitted[request] += 1
                begun.discard(request)
            if emitted[request] == outcome.output_tokens[request]:
                finished[-1].add(request)
        assert len(seated) <= profile.seats
        held = 0
        for request, tokens in computed.items():
            known = outcome.prompt_tokens[request] + emitted[request]
            held += -(-(known if profile.whole_prompt and request in begun else tokens) // profile.block_size)
        assert record.free_blocks[k] == profile.num_blocks - held >= 0
    for request in set().union(*finished):
        computed[request] = 0
    return computed


def check_budget(profile: Profile, chunks: int, decodes: int) -> None:
    if profile.assembler == PREFILL_FIRST:
        assert chunks <= profile.budget
        # the last token of a recompute counts as a decode wherever it is computed
        assert profile.mixed or chunks == 0 or decodes <= 1
    elif profile.decodes_limited:
        assert chunks + decodes <= profile.budget
    else:
        assert chunks <= max(0, profile.budget - decodes)


def check_times(outcome: Outcome) -> None:
    """TTFT is queue plus prefill, time runs forward, and busy time is the sum of the steps."""
    served = outcome.served
    record = outcome.record
    assert record is not None
    np.testing.assert_allclose(outcome.ttft_s(), outcome.queue_s() + outcome.prefill_s(), atol=1e-9)
    assert (outcome.queue_s() >= 0).all()
    assert (outcome.prefill_s() > 0).all()
    assert (outcome.prefill_wait_s[served] < outcome.prefill_s()).all()
    span = outcome.e2e_s() - outcome.ttft_s()
    assert (outcome.max_gap_s[served] <= span + 1e-9).all()
    assert (outcome.tpot_s() <= outcome.max_gap_s[served & (outcome.output_tokens > 1)] + 1e-9).all()
    assert (np.diff(record.scheduled_s) >= 0).all()
    assert (record.start_s[1:] >= record.end_s[:-1]).all()
    np.testing.assert_allclose(outcome.busy_s, (record.end_s - record.start_s).sum(), rtol=1e-9)
    np.testing.assert_allclose(outcome.step_busy_s.sum(), outcome.busy_s, rtol=1e-12)
    assert outcome.uncovered_s == 0
