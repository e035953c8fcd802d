"""What should be deployed for this traffic, on this device, so that the objectives hold at least cost?

The plan tries every combination of the space on growing numbers of replicas (ladder.py) and, where a link is known,
every split into a prefill and a decode pool (splits.py), each against the whole trace in the simulator of the
engine's scheduler (evaluate.py). It recommends one (ranking.py), says how sure it is (confidence.py), why the others
lost (lost.py), what the generic policies would do (policies.py), and what breaks first (breaking.py, sensitivity.py).
Nothing is averaged that is a tail, nothing is extrapolated beyond what the calibration measured, and the same
question has the same answer, however many threads, processes or machines worked on it (crew.py).
Inputs and results are in seconds, tokens and shares of 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.engines import MeasuredEngine
from planner.search.answer import Answer, Question, answer, answer_so_far
from planner.search.breaking import loads_tried, relative, what_breaks
from planner.search.closer import CloserLook
from planner.search.conditions import Conditions
from planner.search.crew import ASKED, CHANGE, LOAD, POLICY, Do, in_threads
from planner.search.draws import StepTimes, error_band
from planner.search.evaluate import Bench, Stopped, run
from planner.search.hardware import Hardware
from planner.search.inputs import sha256
from planner.search.ladder import Climbed, OnProgress, climb_all
from planner.search.objectives import Objective
from planner.search.policies import compare_policies
from planner.search.prepare import DEFAULT_REFITS, Prepared, prepare
from planner.search.prepare import PlanError as PlanError
from planner.search.replica_curve import others_on_curve, replica_curve
from planner.search.result import PlanResult, ReplicaPoint
from planner.search.runs import Simulate, SimulateCluster
from planner.search.sensitivity import changes, sensitivities
from planner.search.space import DEFAULT_MAX_REPLICAS, SearchSpace
from planner.search.splits import BEYOND, Splits, search_splits
from planner.search.steps import OnStanding, Steps
from planner.search.table import candidate_results, with_reasons
from planner.search.why import why
from planner.simulation.kernel import simulate as simulate_compiled
from planner.simulation.kernel.cluster import simulate as simulate_cluster_compiled
from planner.simulation.knobs import SCHEDULING_POLICIES
from planner.traffic import Traffic

#: Told what is known so far, as a function that works it out: whoever does not want it need not wait for it.
OnPartial = Callable[[Callable[[], PlanResult]], None]


def plan(
    traffic: Traffic,
    model: StepTimes,
    kv_tokens: int | KVCapacity,
    architecture: Architecture,
    objectives: Sequence[Objective],
    space: SearchSpace | None = None,
    *,
    threads: int | None = None,
    on_progress: OnProgress = lambda done, total, message: None,
    on_partial: OnPartial = lambda so_far: None,
    conditions: Conditions | None = None,
    max_replicas: int = DEFAULT_MAX_REPLICAS,
    seed: int = 0,
    device: str = "",
    max_model_len: int | None = None,
    host_gap_s: float | None = None,
    band: float | None = None,
    measured_engine: MeasuredEngine | None = None,
    second: Hardware | None = None,
    refits: int = DEFAULT_REFITS,
    should_stop: Callable[[], bool] = lambda: False,
    simulate: Simulate = simulate_compiled,
    simulate_cluster: SimulateCluster = simulate_cluster_compiled,
) -> PlanResult:
    """Find the least replicas, and the knobs, that meet all `objectives` for `traffic` under `conditions`.

    kv_tokens: KV pool of one replica as measured, the block vLLM reserves included; or one for each token budget.
    space: default what the calibration covers, on up to `max_replicas` replicas. conditions: default vLLM, the
    traffic's own rate, no link (so no separate pools). max_model_len: default the most that model and pool (of the
    largest budget) allow. measured_engine: whose step times these are; None: the planned engine's. host_gap_s is
    added to each step. band: share of a limit below which two margins are a tie; default the error of the step-time
    model. refits: how many draws of traffic, step times and
    link the finalists are simulated in, drawn with `seed`. `should_stop` is asked between simulations; a stopped plan
    has `complete` False and says so. device: the hardware's name; second: another kind, on which replicas and pools
    may be, too. simulate, simulate_cluster: by what; default the compiled kernels.
    Raises ObjectiveError, SpaceError, ConditionError or PlanError for unusable inputs, each with field and message.
    """
    prepared = prepare(
        traffic,
        model,
        kv_tokens,
        architecture,
        objectives,
        space,
        conditions=conditions,
        max_replicas=max_replicas,
        seed=seed,
        device=device,
        max_model_len=max_model_len,
        host_gap_s=host_gap_s,
        band=band,
        measured_engine=measured_engine,
        second=second,
        refits=refits,
        should_stop=should_stop,
        simulate=simulate,
        simulate_cluster=simulate_cluster,
    )
    do = in_threads(prepared.hand.do, threads or processors())
    return search(prepared, do, on_progress=on_progress, on_partial=on_partial)


def search(
    prepared: Prepared,
    do: Do,
    *,
    on_progress: OnProgress = lambda done, total, message: None,
    on_partial: OnPartial = lambda so_far: None,
    on_standing: OnStanding = lambda standing: None,
) -> PlanResult:
    """The answer to a prepared question; `do`: who does the simulations. `on_standing` is told what there is left to
    do, after `on_progress`."""
    steps = Steps.of(prepared, on_progress, on_standing)
    question = prepared.question(steps.watching(do))
    bench, most = question.bench, question.max_replicas

    def tell(climbed: Climbed, splits: Splits) -> None:
        on_partial(
            lambda: _result(prepared, question, climbed, splits, answer_so_far(question, climbed, splits))
        )

    climbed = climb_all(
        bench,
        question.crew,
        most,
        on_progress=steps.climbing,
        on_rung=lambda climbed: tell(climbed, Splits()),
    )
    splits = Splits()
    if not climbed.stopped:
        splits = search_splits(
            bench,
            question.crew,
            most,
            most_cost=_most_cost(bench, climbed),
            on_progress=steps.splitting,
            on_level=lambda splits: tell(climbed, splits),
        )
    stopped = climbed.stopped or splits.stopped
    answered = answer(
        question,
        climbed,
        splits,
        begun=lambda: None if stopped or not climbed.climbs else tell(climbed, splits),
    )
    closer, complete = _closer(question, answered, curve=bool(climbed.climbs))
    by_replicas: tuple[ReplicaPoint, ...] = ()
    if complete and answered.shown is not None and climbed.climbs:
        by_replicas = replica_curve(bench, question.crew, answered.shown, most)
    if complete:
        steps.over()
    return _result(prepared, question, climbed, splits, answered, closer, by_replicas, complete=complete)


def _result(
    prepared: Prepared,
    question: Question,
    climbed: Climbed,
    splits: Splits,
    answered: Answer,
    closer: CloserLook | None = None,
    by_replicas: tuple[ReplicaPoint, ...] = (),
    *,
    complete: bool | None = None,
) -> PlanResult:
    """`complete` None: the search goes on."""
    bench, inputs = question.bench, dict(prepared.inputs)
    return PlanResult(
        verdict=answered.verdict,
        candidates=with_reasons(
            candidate_results(bench, climbed, question.combinations, splits, question.band), answered.verdict
        ),
        objectives=bench.objectives,
        trade_axes=bench.trade,
        trade_replicas=climbed.replicas,
        excluded=question.excluded,
        complete=bool(complete),
        inputs=inputs,
        content_hash=sha256(inputs),
        by_replicas=by_replicas,
        closer=closer,
        searching=complete is None,
    )


def _most_cost(bench: Bench, climbed: Climbed) -> float | None:
    """What separate pools may cost where replicas alike meet the objectives; None: they do not."""
    least = climbed.least_cost(bench)
    return None if least is None else least + BEYOND * max(bench.fleet.per_replica)


def _closer(question: Question, answered: Answer, *, curve: bool) -> tuple[CloserLook, bool]:
    """The shown configuration looked at closely, and whether the plan is complete with it. `curve`: its replica curve
    will be asked for next."""
    shown, other, bench = answered.shown, answered.other, question.bench
    known = shown is not None and shown.evaluation.complete and not shown.evaluation.saturated
    if not answered.complete or shown is None or not known:
        return CloserLook(relief=answered.relief), answered.complete
    margin = shown.margin(bench.objectives)
    tell_other = other is not None and other.evaluation.complete and not other.evaluation.saturated
    conditions, crew = question.conditions, question.crew
    step_sigma = error_band(question.model)
    loads = loads_tried(conditions.load, conditions.own_load)
    changed = changes(bench, shown.candidate, step_sigma, question.max_model_len)
    others = others_on_curve(shown, question.max_replicas) if curve else []
    finish = crew.ahead(
        [
            *((shown.candidate, POLICY, policy) for policy in SCHEDULING_POLICIES),
            *((shown.candidate, LOAD, load) for load in relative(loads, conditions.load)),
        ],
        later=[
            *((shown.candidate, CHANGE, number) for number in range(len(changed))),
            *((candidate, ASKED, None) for candidate in others),
        ],
    )
    try:
        own_why = why(run(bench, shown.candidate), shown.evaluation)
        other_why = why(run(bench, other.candidate), other.evaluation) if other and tell_other else None
        finish()
        return (
            CloserLook(
                policies=compare_policies(bench, crew, shown.candidate, margin),
                why=own_why,
                other_why=other_why,
                breaking=what_breaks(
                    bench.objectives, crew, shown.candidate, conditions.load, conditions.own_load
                ),
                sensitivities=sensitivities(
                    bench,
                    crew,
                    shown.candidate,
                    margin,
                    step_sigma,
                    question.max_model_len,
                ),
                relief=answered.relief,
            ),
            True,
        )
    except Stopped:
        return CloserLook(relief=answered.relief), False


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
