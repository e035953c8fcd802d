"""From what all candidates did to the verdict: the choice and the runner-up, or the closest and what is missing.

Where nothing meets the objectives, the requests are simulated once more with a replica each. No number of
replicas can do better than that, so an objective missed even then is impossible for a single request, and one
that is met then may be met with more replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from calibration.architecture import Architecture
from calibration.engines import Foreign
from planner.search import ranking, words
from planner.search.combinations import Candidate, Combination
from planner.search.conditions import Conditions
from planner.search.confidence import Confidence, confidence, in_draws
from planner.search.crew import ALONE, Crew
from planner.search.draws import Draws, StepTimes
from planner.search.engines import budget_of, flags
from planner.search.evaluate import Bench, Stopped
from planner.search.excluded import Excluded
from planner.search.ladder import Climbed
from planner.search.lost import why_lost
from planner.search.model_remarks import model_remarks
from planner.search.objectives import Objective
from planner.search.outside import outside, with_axis
from planner.search.ranking import Option
from planner.search.relief import Relief, relief
from planner.search.result import Finalist, Verdict
from planner.search.splits import Splits
from planner.search.table import behaviour, predictions
from planner.simulation.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Question:
    """What a verdict needs besides what was tried. `band`: share of a limit below which margins are a tie."""

    bench: Bench
    crew: Crew
    conditions: Conditions
    model: StepTimes
    architecture: Architecture
    subject: str
    max_model_len: int
    longest_prompt_tokens: int
    max_replicas: int
    band: float
    draws: Draws | None  # None: nobody asks how sure it is
    combinations: Sequence[Combination]
    repeats: int
    excluded: Excluded
    foreign: Foreign | None = None  # where the step times are another engine's
    told: tuple[str, ...] = ()  # what is to be said of the step times

    def subject_of(self, option: Option | None) -> str:
        """What is deployed, on which hardware: `M on D`."""
        fleet = self.bench.fleet
        where = fleet.where(option.candidate) if option else " or ".join(fleet.names)
        return f"{self.subject} on {where}" if where else self.subject


@dataclass(frozen=True, slots=True)
class Answer:
    """`shown`: what the verdict is about; `other`: the best of the other deployment. `complete`: everything it stands
    on was computed to the end."""

    verdict: Verdict
    complete: bool
    shown: Option | None
    other: Option | None = None
    relief: Relief | None = None


def answer(
    question: Question, climbed: Climbed, splits: Splits, begun: Callable[[], None] = lambda: None
) -> Answer:
    """`begun` is called when others may be at work on the finalists already."""
    tried = ranking.options(climbed, splits, question.bench.fleet.per_replica)
    objectives, band = question.bench.objectives, question.band
    stopped = climbed.stopped or splits.stopped
    chosen = ranking.choose(tried, objectives, band)
    if chosen:
        return _feasible(question, climbed, tried, chosen, words.STOPPED if stopped else "", begun)
    nearest = ranking.closest(tried, objectives, band)
    if stopped:
        return _unfinished(question, climbed, nearest, words.STOPPED)
    return _infeasible(question, climbed, tried, nearest, begun)


def answer_so_far(question: Question, climbed: Climbed, splits: Splits) -> Answer:
    """What is known while the search goes on. Nothing is simulated for it, so nothing is said of how sure it is."""
    question = replace(question, draws=None)
    tried = ranking.options(climbed, splits, question.bench.fleet.per_replica)
    chosen = ranking.choose(tried, question.bench.objectives, question.band)
    if chosen:
        return _feasible(question, climbed, tried, chosen, words.SEARCHING)
    nearest = ranking.closest(tried, question.bench.objectives, question.band)
    return _unfinished(question, climbed, nearest, words.SEARCHING)


def _feasible(
    question: Question,
    climbed: Climbed,
    tried: Sequence[Option],
    chosen: Sequence[Option],
    unfinished: str,
    begun: Callable[[], None] = lambda: None,
) -> Answer:
    """`unfinished`: why there may be better ones; "" where all were tried."""
    objectives, band = question.bench.objectives, question.band
    other = _best_other(question, tried, chosen[0])
    options = [*chosen, *([other] if other and other not in chosen else [])]
    _ask_draws(question, options, begun)
    final = unfinished != words.SEARCHING
    finalists = {id(option): _finalist(question, option, look=final) for option in options}
    complete = not unfinished and all(done for _, done in finalists.values())
    if other and _holds_as_surely(question, other, chosen[0], finalists):
        chosen, other = [other, chosen[0]], chosen[0]
    choice = finalists[id(chosen[0])][0]
    ties = ranking.tied_with(chosen[0], tried, objectives, band)
    verdict = Verdict(
        feasible=True,
        sentence=words.meets_sentence(
            choice, question.subject_of(chosen[0]), question.conditions, question.excluded.count
        ),
        binding=_binding(question, chosen[0]).key,
        choice=choice,
        runner_up=finalists[id(chosen[1])][0] if len(chosen) > 1 else None,
        closest=None,
        remarks=_remarks(
            question,
            climbed,
            choice,
            unfinished or ("" if complete else words.STOPPED),
            len(ties),
            warned=sum(bool(option.warnings) for option in ties),
        ),
        other=finalists[id(other)][0] if other else None,
        lost=why_lost(chosen[0], tried, objectives, band, question.bench.fleet),
        ties=tuple(option.candidate for option in ties),
    )
    return Answer(verdict, complete, chosen[0], other)


def _holds_as_surely(
    question: Question, simple: Option, choice: Option, finalists: Mapping[int, tuple[Finalist, bool]]
) -> bool:
    """Whether `simple` is simpler than the choice, costs as much and holds in as many of the same draws: how wide a
    margin is beyond what it takes to be as sure is no reason for a second pool. Without draws: whether it holds by
    more than the error band."""
    if simple.status != "meets" or simple.cost != choice.cost:
        return False
    if ranking.simplicity(simple)[:2] >= ranking.simplicity(choice)[:2]:
        return False
    one, other = finalists[id(simple)][0], finalists[id(choice)][0]
    if one.refits and other.refits:
        return one.holding >= other.holding
    return simple.margin(question.bench.objectives) > question.band


def _best_other(question: Question, tried: Sequence[Option], own: Option) -> Option | None:
    """The best of the other deployment: the least that meets (of as much, what comes without a warning where the choice
    does), else the closest at the cost of the choice."""
    objectives, band = question.bench.objectives, question.band
    others = [option for option in tried if option.candidate.deployment != own.candidate.deployment]
    met = [option for option in others if option.status == "meets"]
    if met:
        least = min(option.cost for option in met)
        sound = [option for option in met if option.cost == least and not option.warnings]
        return ranking.best_of(met if own.warnings or not sound else sound, objectives, band)
    level = [option for option in others if option.cost == own.cost]
    return ranking.closest(level or others, objectives, band)


def _unfinished(question: Question, climbed: Climbed, nearest: Option | None, why: str) -> Answer:
    finalist = _finalist(question, nearest, look=False)[0] if nearest else None
    verdict = Verdict(
        feasible=False,
        sentence=words.nothing_yet(why, climbed.replicas),
        binding=_binding(question, nearest).key if nearest else None,
        choice=None,
        runner_up=None,
        closest=finalist,
        remarks=_remarks(question, climbed, finalist, why),
    )
    return Answer(verdict, False, nearest)


def _infeasible(
    question: Question,
    climbed: Climbed,
    tried: Sequence[Option],
    nearest: Option | None,
    begun: Callable[[], None],
) -> Answer:
    other = _best_other(question, tried, nearest) if nearest else None
    _ask_draws(question, [option for option in (nearest, other) if option], begun)
    finalist, complete = _finalist(question, nearest) if nearest else (None, True)
    other_finalist, other_done = _finalist(question, other) if other else (None, True)
    best: Mapping[str, float] = {}
    help_: Relief | None = None
    impossible: Objective | None = None
    try:
        best = _alone(question, climbed)
        missed = [o for o in question.bench.objectives if best.get(o.key, 0.0) > o.limit_s]
        impossible = min(missed, key=lambda o: o.margin(best[o.key]), default=None)
        help_ = relief(question.bench, tried, nearest, impossible=impossible is not None)
    except Stopped:
        complete = False
    binding = impossible or (_binding(question, nearest) if nearest else None)
    verdict = Verdict(
        feasible=False,
        sentence=words.fails_sentence(
            finalist,
            binding,
            question.subject_of(nearest),
            question.max_replicas,
            [c for c in question.combinations if c.status != "not tried"],
            impossible is not None,
            best,
            help_,
        ),
        binding=binding.key if binding else None,
        choice=None,
        runner_up=None,
        closest=finalist,
        remarks=_remarks(question, climbed, finalist, "" if complete else words.STOPPED),
        impossible=impossible is not None,
        alone_s=best or None,
        other=other_finalist,
    )
    return Answer(verdict, complete and other_done, nearest, other, help_)


def _alone(question: Question, climbed: Climbed) -> Mapping[str, float]:
    """Best percentiles of a request that runs alone, over all budgets: the only knob that matters then."""
    best: dict[str, float] = {}
    own = [climb.combination for climb in climbed.climbs]
    budgets = {(c.kind, budget_of(c.knobs)): Candidate(c.knobs, 1, kind=c.kind, router=c.router) for c in own}
    for evaluation in question.crew.each(list(budgets.values()), ALONE):
        for key, value in evaluation.values_s.items():
            best[key] = min(value, best.get(key, value))
    return best


def _binding(question: Question, option: Option) -> Objective:
    """The objective with the least margin."""
    objectives = question.bench.objectives
    margins = option.evaluation.margins(objectives)
    return objectives[margins.index(min(margins))]


def _ask_draws(question: Question, options: Sequence[Option], begun: Callable[[], None]) -> None:
    """All the finalists' together."""
    asked = [
        one
        for option in options
        if question.draws and _is_asked_in_draws(option)
        for one in in_draws(option.candidate, question.draws, question.foreign)
    ]
    finish = question.crew.ahead(asked)
    begun()
    finish()


def _is_asked_in_draws(option: Option) -> bool:
    return option.evaluation.complete and not option.evaluation.saturated


def _finalist(question: Question, option: Option, *, look: bool = True) -> tuple[Finalist, bool]:
    """The option with intervals; False where these were stopped. `look`: at what it leaves the measured region by."""
    sure: Confidence | None = None
    done = True
    if question.draws and _is_asked_in_draws(option):
        try:
            sure = confidence(
                question.crew,
                question.bench.objectives,
                option.candidate,
                option.evaluation,
                question.draws,
                question.foreign,
            )
        except Stopped:
            done = False
    candidate, fleet = option.candidate, question.bench.fleet
    reason = option.reason
    if look and option.status == "not covered":
        try:
            reason = with_axis(reason, outside(question.bench, candidate, option.evaluation))
        except Stopped:
            done = False
    finalist = Finalist(
        candidate=candidate,
        status=option.status,
        reason=reason,
        predictions=predictions(question.bench, option.evaluation, sure),
        behaviour=behaviour(option.evaluation),
        flags=() if candidate.pools else _flags(question, candidate.knobs),
        warnings=option.warnings,
        refits=sure.draws if sure else 0,
        holding=sure.holding if sure else 0,
        gpus=fleet.gpus_of(candidate),
        cost_per_hour=fleet.price_of(candidate),
        hardware=fleet.hardware(candidate),
        pool_flags={
            role: _flags(question, knobs)
            for role, knobs in (
                (("prefill", candidate.pools.prefill), ("decode", candidate.pools.decode))
                if candidate.pools
                else ()
            )
        },
    )
    return finalist, done


def _flags(question: Question, knobs: Knobs) -> tuple[str, ...]:
    return flags(knobs, question.max_model_len, question.longest_prompt_tokens, question.architecture)


def _remarks(
    question: Question,
    climbed: Climbed,
    shown: Finalist | None,
    unfinished: str,
    tied: int = 0,
    *,
    warned: int = 0,
) -> tuple[str, ...]:
    """`warned`: of those `tied`, how many come with a warning."""
    said = words.remarks(
        shown,
        climbed,
        question.excluded,
        question.bench.requests.count,
        question.repeats,
        tied,
        question.band,
        unfinished,
        question.conditions,
        warned=warned,
        outside=_where_outside(question, climbed) if not unfinished else "",
    )
    other = (question.foreign.sentence,) if question.foreign else ()
    return (*question.told, *said, *other, *model_remarks(question.architecture, question.max_model_len))


def _where_outside(question: Question, climbed: Climbed) -> str:
    """Of the combination that spends the most time outside the measured region; "" where none spends too much."""
    tried = ranking.options(climbed)
    left = [option for option in tried if option.status == "not covered"]
    if not left:
        return ""
    worst = max(left, key=lambda option: option.evaluation.uncovered_share)
    try:
        return outside(question.bench, worst.candidate, worst.evaluation)
    except Stopped:
        return ""
