"""Every combination of the space as a row: what it predicts, how it behaves, why it was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.search import ranking
from planner.search.combinations import Combination
from planner.search.confidence import Confidence
from planner.search.evaluate import Bench, Evaluation
from planner.search.ladder import Climb, Climbed
from planner.search.ranking import Option
from planner.search.result import Behaviour, CandidateResult, Prediction, TradePoint, Tried, Verdict
from planner.search.splits import Attempt, Splits


def candidate_results(
    bench: Bench, climbed: Climbed, found: Sequence[Combination], splits: Splits, band: float
) -> tuple[CandidateResult, ...]:
    """Every combination of the space, in its order, tried or not; then every pair of pools that was tried."""
    climbs = {_place(climb.combination): climb for climb in climbed.climbs}
    alike = [
        _tried(bench, climb, climbed.replicas)
        if (climb := climbs.get(_place(combination))) and climb.last
        else CandidateResult(
            combination.knobs,
            0,
            combination.status,
            combination.reason or "the search was stopped before",
            combination.warnings,
            (),
            None,
            None,
            (),
            None,
            kind=combination.kind,
            router=combination.router,
        )
        for combination in found
    ]
    pairs: dict[object, list[Attempt]] = {}
    for attempt in splits.attempts:
        pairs.setdefault(attempt.candidate.pools, []).append(attempt)
    return (*alike, *(_pair(bench, attempts, climbed.replicas, band) for attempts in pairs.values()))


def with_reasons(rows: Sequence[CandidateResult], verdict: Verdict) -> tuple[CandidateResult, ...]:
    """What was found out of finalists beyond the search stands in their rows, too."""
    shown = [verdict.choice, verdict.runner_up, verdict.closest, verdict.other]
    reasons = {finalist.candidate: finalist.reason for finalist in shown if finalist}
    return tuple(replace(row, reason=reasons.get(row.candidate, row.reason)) for row in rows)


def _place(combination: Combination) -> object:
    return combination.kind, combination.router, combination.knobs


def _tried(bench: Bench, climb: Climb, replicas: int) -> CandidateResult:
    rung = climb.last
    assert rung is not None  # noqa: S101  the caller has checked
    per_replica = bench.fleet.per_replica
    tried = tuple(Tried(r.replicas, r.status, r.reason) for r in climb.rungs)
    at = climb.at(replicas)
    return _row(
        bench,
        Option.of_rung(climb, rung, per_replica),
        tried,
        Option.of_rung(climb, at, per_replica) if at else None,
    )


def _pair(bench: Bench, attempts: Sequence[Attempt], replicas: int, band: float) -> CandidateResult:
    """One pair of pools on all splits: on the one that meets, or that misses least."""
    tried = [Option.of_attempt(attempt, bench.fleet.per_replica) for attempt in attempts]
    met = [option for option in tried if option.status == "meets"]
    shown = (
        ranking.best_of(met, bench.objectives, band)
        if met
        else ranking.closest(tried, bench.objectives, band) or tried[-1]
    )
    rows = tuple(Tried(o.candidate.replicas, o.status, o.reason, o.candidate.prefill_replicas) for o in tried)
    at = [o for o in tried if o.candidate.replicas == replicas and o.evaluation.complete]
    return _row(bench, shown, rows, ranking.best_of(at, bench.objectives, band) if at else None)


def _row(bench: Bench, shown: Option, tried: tuple[Tried, ...], at: Option | None) -> CandidateResult:
    found = predictions(bench, shown.evaluation)
    margins = [p.margin for p in found if p.margin is not None]
    candidate = shown.candidate
    return CandidateResult(
        knobs=candidate.knobs,
        replicas=candidate.replicas,
        status=shown.status,
        reason=shown.reason,
        warnings=shown.warnings,
        predictions=found,
        worst_margin=min(margins, default=None),
        behaviour=behaviour(shown.evaluation) if shown.evaluation.complete else None,
        tried=tried,
        trade=_trade_point(bench, at) if at else None,
        pools=candidate.pools,
        prefill_replicas=candidate.prefill_replicas,
        kind=candidate.kind,
        router=candidate.router,
    )


def _trade_point(bench: Bench, option: Option) -> TradePoint:
    known = option.evaluation.complete and not option.evaluation.saturated
    values = option.evaluation.values_s if known else {}
    ttft, itl = (values.get(axis.key) for axis in bench.trade)
    return TradePoint(ttft, itl, option.status, option.reason)


def predictions(
    bench: Bench, evaluation: Evaluation, sure: Confidence | None = None
) -> tuple[Prediction, ...]:
    found: list[Prediction] = []
    for o in bench.objectives:
        known = evaluation.complete and not evaluation.saturated
        value = evaluation.values_s.get(o.key) if known else None
        low, high = sure.intervals_s.get(o.key, (None, None)) if sure else (None, None)
        samples, requests = bench.requests.samples(o), bench.requests.requests_behind(o)
        found.append(
            Prediction(
                objective=o,
                predicted_s=value,
                margin=o.margin(value) if value is not None else None,
                samples=samples,
                requests=requests,
                claimed=value is not None and o.claimable(samples, requests),
                low_s=low,
                high_s=high,
                probability=sure.probability.get(o.key) if sure else None,
                attained=evaluation.attained.get(o.key) if known else None,
            )
        )
    return tuple(found)


def behaviour(evaluation: Evaluation) -> Behaviour:
    return Behaviour(
        utilisation=evaluation.utilisation,
        uncovered_share=evaluation.uncovered_share,
        mean_batch=evaluation.mean_batch,
        peak_running=evaluation.peak_running,
        preemptions=evaluation.preemptions,
        steps=evaluation.steps,
        prompt_tokens_per_s=evaluation.prompt_tokens_per_s,
        generated_tokens_per_s=evaluation.generated_tokens_per_s,
        split_s=evaluation.split_s,
        pools=evaluation.pools,
        link_share=evaluation.link_share,
        transfer_adds_s=evaluation.transfer_adds_s,
    )
