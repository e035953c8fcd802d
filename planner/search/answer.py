"""From what all combinations did to the verdict: the choice and the runner-up, or the closest and what is missing.

Where nothing meets the objectives, the requests are simulated once more with a replica each. No number of
replicas can do better than that, so an objective missed even then is impossible for a single request, and one
that is met then may be met with more replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibration.architecture import Architecture
from planner.search import ranking, words
from planner.search.confidence import Confidence, StepTimes, alone, confidence
from planner.search.evaluate import Bench, Stopped
from planner.search.ladder import Climb, Climbed
from planner.search.model_remarks import model_remarks
from planner.search.objectives import Objective
from planner.search.result import Excluded, Finalist, Verdict
from planner.search.space import Candidate, Combination
from planner.search.table import behaviour, predictions
from planner.serving_engines import vllm


@dataclass(frozen=True, slots=True)
class Question:
    """What a verdict needs besides the climbs. `band`: share of a limit below which margins are a tie."""

    bench: Bench
    model: StepTimes
    architecture: Architecture
    subject: str
    max_model_len: int
    max_replicas: int
    band: float
    refits: Sequence[int]
    threads: int
    combinations: Sequence[Combination]
    repeats: int
    excluded: Excluded


def answer(question: Question, climbed: Climbed) -> tuple[Verdict, bool]:
    """The verdict, and whether everything it stands on was computed to the end."""
    chosen = ranking.choose(climbed, question.bench.objectives, question.band)
    if chosen:
        return _feasible(question, climbed, chosen)
    nearest = ranking.closest(climbed, question.bench.objectives, question.band)
    if climbed.stopped:
        return _stopped(question, climbed, nearest)
    return _infeasible(question, climbed, nearest)


def _feasible(question: Question, climbed: Climbed, chosen: Sequence[Climb]) -> tuple[Verdict, bool]:
    finalists = [_finalist(question, climb) for climb in chosen]
    complete = not climbed.stopped and all(done for _, done in finalists)
    choice = finalists[0][0]
    verdict = Verdict(
        feasible=True,
        sentence=words.meets_sentence(choice, question.subject, question.excluded.count),
        binding=_binding(question, chosen[0]).key,
        choice=choice,
        runner_up=finalists[1][0] if len(finalists) > 1 else None,
        closest=None,
        remarks=_remarks(
            question,
            climbed,
            choice,
            complete,
            ranking.tied_with(chosen[0], climbed, question.bench.objectives, question.band),
        ),
    )
    return verdict, complete


def _stopped(question: Question, climbed: Climbed, nearest: Climb | None) -> tuple[Verdict, bool]:
    finalist = _finalist(question, nearest)[0] if nearest else None
    verdict = Verdict(
        feasible=False,
        sentence="Stopped before a configuration was found that meets the objectives.",
        binding=_binding(question, nearest).key if nearest else None,
        choice=None,
        runner_up=None,
        closest=finalist,
        remarks=_remarks(question, climbed, finalist, complete=False),
    )
    return verdict, False


def _infeasible(question: Question, climbed: Climbed, nearest: Climb | None) -> tuple[Verdict, bool]:
    finalist, complete = _finalist(question, nearest) if nearest else (None, True)
    best: Mapping[str, float] = {}
    try:
        best = _alone(question, climbed)
    except Stopped:
        complete = False
    missed = [o for o in question.bench.objectives if best.get(o.key, 0.0) > o.limit_s]
    impossible = min(missed, key=lambda o: o.margin(best[o.key]), default=None)
    binding = impossible or (_binding(question, nearest) if nearest else None)
    verdict = Verdict(
        feasible=False,
        sentence=words.fails_sentence(
            finalist,
            binding,
            question.subject,
            question.max_replicas,
            [c for c in question.combinations if c.status != "not tried"],
            impossible is not None,
            best,
        ),
        binding=binding.key if binding else None,
        choice=None,
        runner_up=None,
        closest=finalist,
        remarks=_remarks(question, climbed, finalist, complete),
        impossible=impossible is not None,
        alone_s=best or None,
    )
    return verdict, complete


def _alone(question: Question, climbed: Climbed) -> Mapping[str, float]:
    """Best percentiles of a request that runs alone, over all budgets: the only knob that matters then."""
    best: dict[str, float] = {}
    budgets = {c.combination.knobs.max_num_batched_tokens: c.combination.knobs for c in climbed.climbs}
    for knobs in budgets.values():
        for key, value in alone(question.bench, knobs).items():
            best[key] = min(value, best.get(key, value))
    return best


def _binding(question: Question, climb: Climb) -> Objective:
    """The objective with the least margin."""
    objectives = question.bench.objectives
    rung = climb.last
    margins = rung.evaluation.margins(objectives) if rung else [0.0]
    return objectives[margins.index(min(margins))]


def _finalist(question: Question, climb: Climb) -> tuple[Finalist, bool]:
    """The climb's last rung, with intervals; False where these were stopped."""
    rung = climb.last
    if rung is None:
        raise ValueError("a combination that was never simulated cannot be a finalist")
    knobs = climb.combination.knobs
    sure: Confidence | None = None
    done = True
    if question.refits and rung.evaluation.complete and not rung.evaluation.saturated:
        try:
            sure = confidence(
                question.bench,
                question.model,
                knobs,
                rung.replicas,
                rung.evaluation,
                question.refits,
                question.threads,
            )
        except Stopped:
            done = False
    finalist = Finalist(
        candidate=Candidate(knobs, rung.replicas),
        status=rung.status,
        reason=rung.reason,
        predictions=predictions(question.bench, rung, sure),
        behaviour=behaviour(rung.evaluation),
        flags=tuple(vllm.flags(knobs, question.max_model_len, question.architecture)),
        warnings=climb.combination.warnings,
        refits=sure.refits if sure else 0,
        holding=sure.holding if sure else 0,
    )
    return finalist, done


def _remarks(
    question: Question, climbed: Climbed, shown: Finalist | None, complete: bool, tied: int = 0
) -> tuple[str, ...]:
    said = words.remarks(
        shown,
        climbed,
        question.excluded,
        question.bench.requests.count,
        question.repeats,
        tied,
        question.band,
        complete,
    )
    return (*said, *model_remarks(question.architecture, question.max_model_len))
