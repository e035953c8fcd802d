"""The work behind the plan job: what runs between a row's claim and its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from calibration.architecture import Architecture
from calibration.jobs import JobCancelled, JobRefused, JobRun
from calibration.models import Calibration
from calibration.patience import patiently
from calibration.services import facts_of, kv_capacity, step_time_model
from planner import search, services, sharing
from planner.models import Plan
from planner.pace import Pace
from planner.schedule_work import schedule_of
from planner.search import Conditions, PlanError, PlanResult, Prepared, SearchSpace, parse_objectives
from planner.search.crew import Do, in_threads
from planner.search.evaluate import Stopped
from planner.search.hardware import Hardware
from planner.search.inputs import MADE_WITH, answer_sha256, made_with
from planner.search.parts import Hand
from planner.search.periods import Asked
from planner.search.steps import Standing
from planner.sharing import SharedSearch
from planner.simulation import ready

COMPILING = "Compiling the simulator, once after an installation: about half a minute"
PARTIAL_EVERY_S: Final = 1.0


def plan(plan: Plan, run: JobRun) -> None:
    """Searches the plan's space on its traffic; writes the verdict and every candidate with its reason. By this
    process alone."""
    _plan(plan, run, lambda hand: in_threads(hand.do, search.processors()))


def shared_plan(plan: Plan, run: JobRun, *, threads: int, helpers: int, call: Callable[[], None]) -> None:
    """The same with the help of other processes, which `call` sends for (`sharing`)."""

    def crew(hand: Hand) -> Do:
        return SharedSearch(plan, hand, threads=threads, helpers=helpers).do

    try:
        _plan(plan, run, crew, call if helpers else _nobody)
    finally:
        sharing.clear(plan)


def hand_of(plan: Plan, should_stop: Callable[[], bool]) -> Hand:
    """What it takes to do parts of the plan's search."""
    return prepared(plan, Calibration.objects.get(pk=plan.calibration_id), should_stop).hand


def prepared(plan: Plan, calibration: Calibration, should_stop: Callable[[], bool]) -> Prepared:
    """The row's question. Raises JobRefused where it cannot be asked."""
    space = SearchSpace.from_dict(plan.space) if "budgets_tokens" in plan.space else None
    try:
        return search.prepare(
            services.traffic_of(plan.traffic),
            step_time_model(calibration),
            kv_capacity(calibration),
            Architecture.from_dict(calibration.architecture),
            parse_objectives(plan.objectives),
            space,
            conditions=Conditions.from_dict(plan.conditions),
            max_replicas=plan.space.get("max_replicas", search.DEFAULT_MAX_REPLICAS),
            device=device_names(calibration, plan.second_calibration)[0],
            measured_engine=facts_of(calibration).engine,
            second=second_hardware(calibration, plan.second_calibration),
            schedule=Asked(**(plan.schedule or {})),
            seed=plan.seed,
            told=told_of(calibration, plan.second_calibration),
            should_stop=should_stop,
        )
    except PlanError as error:
        raise JobRefused(error.message) from error


def second_hardware(first: Calibration, own: Calibration | None) -> Hardware | None:
    """The other hardware that a plan may use."""
    if own is None:
        return None
    return Hardware(device_names(first, own)[1], step_time_model(own), kv_capacity(own), facts_of(own).engine)


def told_of(first: Calibration, second: Calibration | None) -> list[str]:
    """What the calibrations say against themselves; of two kinds of hardware with the device, whatever they are named:
    the answer is the same for who asks it elsewhere."""
    if second is None:
        return list(first.remarks)
    rows = zip(device_names(first, second), (first, second), strict=True)
    return [f"{device}: {remark}" for device, row in rows for remark in row.remarks]


def device_names(first: Calibration, second: Calibration | None) -> tuple[str, str]:
    """Devices; two calibrations on the same one, as with other ranks, are told apart by their names."""
    if second is None or second.device_label != first.device_label:
        return first.device_label, second.device_label if second else ""
    one, other = (f"{row.device_label} ({row.name})" for row in (first, second))
    return one, other


def _nobody() -> None:
    pass


def _plan(plan: Plan, run: JobRun, crew: Callable[[Hand], Do], call: Callable[[], None] = _nobody) -> None:
    calibration = Calibration.objects.get(pk=plan.calibration_id)
    for own in (calibration, plan.second_calibration):
        if own is not None and not own.published:
            raise JobRefused(f"The calibration {own.name!r} is not published: {own.reason}")
    await_simulator(run, plan)
    call()
    question = prepared(plan, calibration, run.should_stop)
    pace, at, said = Pace(), (0, 1), ""

    def progress(done: int, total: int, message: str) -> None:
        nonlocal at, said
        at, said = (done, total), message

    def standing(standing: Standing) -> None:
        left = pace.left(standing)
        run.progress(*at, said, left.left_s, at_most=left.at_most)

    result = search.search(
        question,
        crew(question.hand),
        on_progress=progress,
        on_partial=_Partial(plan).tell,
        on_standing=standing,
    )
    verdict, stored = result.verdict, result.to_dict()

    def store(result: dict[str, Any]) -> None:
        _store(plan, result=result, feasible=verdict.feasible, sentence=verdict.sentence)

    if result.stopped:
        store(stored)
        raise JobCancelled
    run.write_log(verdict.sentence)
    try:
        stored["schedule"] = schedule_of(
            plan,
            result,
            services.traffic_of(plan.traffic),
            step_time_model(calibration),
            run.should_stop,
            lambda message: run.progress(*at, message),
            lambda: store(dict(stored)),
        )
    except Stopped as error:  # the answer for the whole traffic is kept
        raise JobCancelled from error
    store(stored | {"answer_hash": answer_sha256(stored), MADE_WITH: made_with()})


def await_simulator(run: JobRun, plan: Plan) -> None:
    """No job compiles: who comes before the worker's own compiling is over waits for it, and says so."""

    def tell() -> None:
        run.progress(0, 0, COMPILING)
        run.check()

    ready.wait(tell, Conditions.from_dict(plan.conditions).engine)


def _store(plan: Plan, **values: object) -> None:
    rows = Plan.objects.filter(pk=plan.pk, status=Plan.RUNNING)
    patiently(lambda: rows.update(**values))


class _Partial:
    """Stores what is known while the search goes on: the first answer at once, later ones now and then. The verdict's
    columns stay empty: there is none yet."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._told_s = -PARTIAL_EVERY_S
        self._met = False

    def tell(self, so_far: Callable[[], PlanResult]) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < PARTIAL_EVERY_S and self._met:
            return
        result = so_far()
        if now_s - self._told_s < PARTIAL_EVERY_S and not result.verdict.feasible:
            return
        self._met = result.verdict.feasible
        _store(self._plan, result=result.to_dict())
        self._told_s = time.monotonic()
