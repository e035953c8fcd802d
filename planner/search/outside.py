"""In what respect a candidate's steps leave the measured region: worked out for the few that are shown.

A search only counts the time outside. Which axis it is beyond takes the steps themselves, so one run is made again and
recorded: of replicas dealt requests in turn, the first that left the region. The share is the whole candidate's.
"""

from __future__ import annotations

from calibration.steptime.beyond import Beyond, beyond
from planner.search.class_gaps import MAX_RECORDED_TOKENS
from planner.search.combinations import Candidate
from planner.search.evaluate import Bench, Evaluation, Stopped
from planner.search.runs import of_router, of_two_pools, run_replica
from planner.simulation.cluster.deployment import ROUND_ROBIN
from planner.simulation.outcome import StepRecord
from planner.simulation.step_features import features_of_record


def outside(bench: Bench, candidate: Candidate, evaluation: Evaluation) -> str:
    """`1.1 % in steps of up to 612 tokens; measured up to 512`; "" where it cannot be told. Raises Stopped when the
    caller wants to stop."""
    found = _alike(bench, candidate) if _by_itself(candidate) else _together(bench, candidate)
    if found is None or found.seconds <= 0.0:
        return ""
    share = evaluation.uncovered_share * found.own_s / found.seconds
    return f"{100.0 * share:.3g} % in {found.text}"


def with_axis(reason: str, axis: str) -> str:
    """`... (at most 0.5 %: 1.1 % in steps of ...)`."""
    return reason.replace(" %)", f" %): {axis}", 1) if axis else reason


def _by_itself(candidate: Candidate) -> bool:
    return candidate.pools is None and (candidate.router == ROUND_ROBIN or candidate.replicas == 1)


def _alike(bench: Bench, candidate: Candidate) -> Beyond | None:
    bench = bench.of_kind(candidate.kind)
    for replica in range(candidate.replicas):
        if bench.should_stop():
            raise Stopped
        part = bench.requests.share(replica, candidate.replicas)
        if part.output_tokens.sum() > MAX_RECORDED_TOKENS:
            return None
        outcome = run_replica(
            bench.simulate,
            part,
            candidate.knobs,
            bench.step_time,
            bench.host_gap_s,
            bench.hit_share,
            record_steps=True,
        )
        if outcome.uncovered_s > 0.0 and outcome.record is not None:
            return beyond(bench.step_time, features_of_record(outcome.record, part.prompt_tokens)[1])
    return None


def _together(bench: Bench, candidate: Candidate) -> Beyond | None:
    """Of the replica that spends the most time outside."""
    if bench.should_stop():
        raise Stopped
    if bench.requests.output_tokens.sum() > MAX_RECORDED_TOKENS:
        return None
    if candidate.pools is None:
        there = bench.of_kind(candidate.kind)
        outcome = of_router(
            there.simulate_cluster,
            there.requests,
            candidate.knobs,
            candidate.replicas,
            candidate.router,
            there.step_time,
            there.host_gap_s,
            there.hit_share,
            record_steps=True,
        )
        kinds = (candidate.kind, candidate.kind)
    else:
        if bench.link is None:
            return None
        kinds = (candidate.pools.prefill_kind, candidate.pools.decode_kind)
        outcome = of_two_pools(
            bench.simulate_cluster,
            bench.requests,
            candidate,
            (bench.steps_of(kinds[0]), bench.steps_of(kinds[1])),
            bench.host_gap_s,
            bench.link,
            bench.moved_per_token(candidate.pools),
            bench.message_s,
            bench.hit_share,
            record_steps=True,
        )
    uses = [(use, kinds[0]) for use in outcome.prefill] + [(use, kinds[1]) for use in outcome.decode]
    worst, kind = max(uses, key=lambda each: each[0].uncovered_s)
    record: StepRecord | None = worst.record
    if record is None:
        return None
    return beyond(bench.steps_of(kind), features_of_record(record, bench.requests.prompt_tokens)[1])
