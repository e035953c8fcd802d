"""What must hold for every run, checked on the recorded steps by an account of its own."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.steptime.scalar import linear_model
from planner.simulation import kernel
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome

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
    computed = check_steps(outcome, knobs)
    served = outcome.served
    assert computed == dict.fromkeys(np.flatnonzero(served).tolist(), 0)  # all were released
    needed = int((prompts + outputs - 1)[served].sum())
    assert outcome.computed_tokens >= needed
    if outcome.preemptions.sum() == 0:
        assert outcome.computed_tokens == needed  # every token exactly once
    assert outcome.gap_counts.sum() == (outputs[served] - 1).sum()
    check_times(outcome)


def check_steps(outcome: Outcome, knobs: VllmKnobs) -> dict[int, int]:
    """Replay the record: progress is gapless, blocks are what is held, seats and budget are kept to.

    Returns each request's tokens in the pool at the end.
    """
    record = outcome.record
    assert record is not None
    computed = dict.fromkeys(np.flatnonzero(outcome.served).tolist(), 0)
    seated: set[int] = set()
    finished: list[set[int]] = []
    for k in range(len(record.free_blocks)):
        due = len(finished) - 1 - int(knobs.async_scheduling)
        for request in finished[due] if due >= 0 else ():
            computed[request] = 0
            seated.discard(request)
        for request in record.preempted[
            record.preempted_offsets[k] : record.preempted_offsets[k + 1]
        ].tolist():
            assert request in seated
            computed[request] = 0
            seated.discard(request)
        finished.append(set())
        rows = range(record.offsets[k], record.offsets[k + 1])
        assert record.tokens[rows].sum() <= knobs.max_num_batched_tokens
        for row in rows:
            request = int(record.request[row])
            assert record.cached[row] == computed[request]
            computed[request] += int(record.tokens[row])
            seated.add(request)
            if computed[request] == outcome.prompt_tokens[request] + outcome.output_tokens[request] - 1:
                finished[-1].add(request)
        assert len(seated) <= knobs.max_num_seqs
        held = sum(-(-tokens // knobs.block_size) for tokens in computed.values())
        assert record.free_blocks[k] == knobs.num_blocks - held >= 0
    for request in set().union(*finished):
        computed[request] = 0
    return computed


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
