"""Every combination of the space as a row: what it predicts, how it behaves, why it was rejected."""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.confidence import Confidence
from planner.search.evaluate import Bench, Evaluation
from planner.search.ladder import Climb, Climbed, Rung
from planner.search.result import Behaviour, CandidateResult, Prediction, TradePoint, Tried
from planner.search.space import Combination


def candidate_results(
    bench: Bench, climbed: Climbed, found: Sequence[Combination]
) -> tuple[CandidateResult, ...]:
    """Every combination of the space, in its order, tried or not."""
    climbs = {climb.combination.knobs: climb for climb in climbed.climbs}
    return tuple(
        _tried(bench, climbs[combination.knobs], climbed.replicas)
        if combination.knobs in climbs and climbs[combination.knobs].last
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
        )
        for combination in found
    )


def _tried(bench: Bench, climb: Climb, replicas: int) -> CandidateResult:
    rung = climb.last
    assert rung is not None  # noqa: S101  the caller has checked
    found = predictions(bench, rung)
    margins = [p.margin for p in found if p.margin is not None]
    at = climb.at(replicas)
    return CandidateResult(
        knobs=climb.combination.knobs,
        replicas=rung.replicas,
        status=rung.status,
        reason=rung.reason,
        warnings=climb.combination.warnings,
        predictions=found,
        worst_margin=min(margins, default=None),
        behaviour=behaviour(rung.evaluation) if rung.evaluation.complete else None,
        tried=tuple(Tried(r.replicas, r.status, r.reason) for r in climb.rungs),
        trade=_trade_point(bench, at) if at else None,
    )


def _trade_point(bench: Bench, rung: Rung) -> TradePoint:
    known = rung.evaluation.complete and not rung.evaluation.saturated
    values = rung.evaluation.values_s if known else {}
    ttft, itl = (values.get(axis.key) for axis in bench.trade)
    return TradePoint(ttft, itl, rung.status, rung.reason)


def predictions(bench: Bench, rung: Rung, sure: Confidence | None = None) -> tuple[Prediction, ...]:
    found: list[Prediction] = []
    for o in bench.objectives:
        evaluation = rung.evaluation
        known = evaluation.complete and not evaluation.saturated
        value = evaluation.values_s.get(o.key) if known else None
        low, high = sure.intervals_s.get(o.key, (None, None)) if sure else (None, None)
        samples, requests = bench.requests.samples(o.metric), bench.requests.requests_behind(o.metric)
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
    )
