"""Plans that rest on a calibration of which there is a newer one: looked at again, marked, made again if asked.

The planner looks for them itself, each 10 s: a calibration knows nothing of plans. A review is a job like any other;
there is one of each plan under each newer calibration, whoever looks how often. A plan whose calibration has no newer
one of its subject is left alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from accounts.access import may_write
from calibration import jobs, notifications
from calibration.architecture import Architecture
from calibration.jobs import JobCancelled, JobRefused, JobRun
from calibration.lineage import Subject, newest_of, subject_of, when
from calibration.models import Calibration
from calibration.patience import patiently
from calibration.services import facts_of, kv_capacity, step_time_model
from planner import search, services
from planner.models import Plan, PlanReview
from planner.search import Conditions, PlanError, PlanResult, SearchSpace, parse_objectives
from planner.staleness import STALE, review
from planner.work import device_names, second_hardware

MOST_AT_ONCE = 50
CURRENT, CHECKING, SAME, UNCLEAR = "current", "checking", "same answer", "unclear"
STALE_STATES = tuple(STALE)


@dataclass(frozen=True, slots=True)
class Staleness:
    """Where a plan stands: "current" (no newer calibration), "checking", "same answer", one of STALE, or "unclear"
    where it could not be looked at."""

    state: str
    sentence: str = ""
    newer: uuid.UUID | None = None
    review: PlanReview | None = None

    @property
    def stale(self) -> bool:
        return self.state in STALE_STATES

    def to_dict(self) -> dict[str, Any]:
        row = self.review
        return {
            "state": self.state, "stale": self.stale, "sentence": self.sentence, "calibration": self.newer,
            "difference": row and row.difference, "replan": row and row.replan_id,
        }  # fmt: skip


# Looking -----------------------------------------------------------------------------------------------------


def superseded() -> list[tuple[Plan, Calibration]]:
    """Finished plans whose calibration has a newer one under which they were not looked at yet. One that was made
    again is left to its successor."""
    rows = Plan.objects.filter(status=Plan.DONE, result__isnull=False).exclude(reviews__replan__isnull=False)
    rested_on = Calibration.objects.filter(
        Q(pk__in=rows.values("calibration")) | Q(pk__in=rows.values("second_calibration"))
    )
    used = {row.pk: row for row in rested_on.defer("result", "environment", "log", "traceback")}
    newest = newest_of({row.project_id for row in used.values()})
    newer = [row.pk for row in used.values() if _later(row, newest) is not None]
    open_ = rows.filter(Q(calibration__in=newer) | Q(second_calibration__in=newer)).select_related("project")
    seen = set(PlanReview.objects.filter(plan__in=open_).values_list("plan", "calibration"))
    found: list[tuple[Plan, Calibration]] = []
    for plan in open_.defer("result", "log", "traceback"):
        first, second = plan.calibration_id, plan.second_calibration_id
        if (
            not {first, second or first} <= used.keys()
        ):  # it ended after they were looked up: the next look has it
            continue
        latest = _latest(used[first], used[second] if second else None, newest)
        if latest is not None and (plan.pk, latest.pk) not in seen:
            found.append((plan, latest))
    return found[:MOST_AT_ONCE]


def _later(row: Calibration, newest: Mapping[Subject, Calibration]) -> Calibration | None:
    found = newest.get(subject_of(row))
    return found if found is not None and found.pk != row.pk and when(found) > when(row) else None


def _latest(
    first: Calibration, second: Calibration | None, newest: Mapping[Subject, Calibration]
) -> Calibration | None:
    """What a plan of these calibrations is to be looked at again under: of the newer ones of both the later. A plan
    that compares two measurements of one subject asks for just these two and is never out of date."""
    if second is not None and subject_of(first) == subject_of(second):
        return None
    found = [_later(row, newest) for row in (first, second) if row is not None]
    return max((row for row in found if row is not None), key=when, default=None)


def rests_on(plan: Plan, later: Calibration) -> tuple[Calibration, Calibration | None]:
    """The plan's calibrations under `later`, a newer one of either: it in that one's place, and the newest that was
    there by then in the other's."""
    newest = newest_of([plan.calibration.project_id])

    def renewed(row: Calibration) -> Calibration:
        if subject_of(row) == subject_of(later):
            return later
        found = _later(row, newest)
        return Calibration.objects.get(pk=found.pk) if found is not None else row

    second = plan.second_calibration
    return renewed(plan.calibration), renewed(second) if second is not None else None


def start_reviews() -> int:
    """Writes the rows that are missing and sends them to queue ``default``. Safe to run anywhere, any number of
    times. Returns how many."""
    from planner import tasks

    started = 0
    for plan, newer in superseded():
        with transaction.atomic():
            row, made = PlanReview.objects.get_or_create(
                plan=plan, calibration=newer,
                defaults={"project": plan.project, "owner_id": plan.owner_id, "name": f"Review of {plan.name}"[:120]},
            )  # fmt: skip
            if made:
                jobs.send_after_commit(row, tasks.run_review)
                started += 1
    return started


# The work ----------------------------------------------------------------------------------------------------


def work(row: PlanReview, run: JobRun) -> None:
    """Asks whether the plan's answer still stands; makes the plan again where it does not and that was asked."""
    plan = row.plan
    first, second = rests_on(plan, Calibration.objects.get(pk=row.calibration_id))
    for own in (first, second):
        if own is not None and not own.published:
            raise JobRefused(f"The calibration {own.name!r} is not published.")
    try:
        found = review(plan.result or {}, lambda space: _searched(plan, first, second, space, run))
    except PlanError as error:
        raise JobRefused(f"It cannot be asked under {row.calibration.name!r}: {error.message}") from error
    values = {"outcome": found.outcome, "sentence": found.sentence, "difference": found.to_dict()}
    rows = PlanReview.objects.filter(pk=row.pk, status=PlanReview.RUNNING)
    patiently(lambda: rows.update(**values))
    run.write_log(found.sentence)
    if found.outcome in STALE and plan.replan_when_stale and may_write(plan.owner, plan.project):
        replan(row, plan.owner)
        run.write_log("It is made again with the newer calibration.")


def _searched(
    plan: Plan, calibration: Calibration, second: Calibration | None, space: SearchSpace, run: JobRun
) -> PlanResult:
    """As planner.work.plan asks, without intervals."""
    result = search.plan(
        services.traffic_of(plan.traffic), step_time_model(calibration), kv_capacity(calibration),
        Architecture.from_dict(calibration.architecture), parse_objectives(plan.objectives), space,
        conditions=Conditions.from_dict(plan.conditions), device=device_names(calibration, second)[0],
        measured_engine=facts_of(calibration).engine, second=second_hardware(calibration, second),
        seed=plan.seed, refits=0, on_progress=run.progress, should_stop=run.should_stop,
    )  # fmt: skip
    if result.stopped:
        raise JobCancelled
    return result


def replan(row: PlanReview, owner: Any) -> Plan:
    """The plan's question asked anew of the newer calibration, once. Goes on as the plan was set to."""
    with transaction.atomic():
        locked = (
            PlanReview.objects.select_for_update(of=("self",)).select_related("plan", "replan").get(pk=row.pk)
        )
        if locked.replan is not None:
            return locked.replan
        first, second = rests_on(locked.plan, row.calibration)
        anew = services.rerun(locked.plan, owner, calibration=first, second=second)
        PlanReview.objects.filter(pk=row.pk).update(replan=anew)
    return anew


def may_replan(user: Any, row: PlanReview) -> bool:
    return row.status == PlanReview.DONE and row.replan_id is None and may_write(user, row.project)


def tell_stale() -> int:
    """Tells of plans that went stale lately. Returns how many deliveries are new."""
    since = timezone.now() - notifications.LOOK_BACK
    rows = PlanReview.objects.filter(status=PlanReview.DONE, outcome__in=STALE, finished_at__gte=since)
    return notifications.tell([
        notifications.Event(
            "plan_stale", f"stale {row.pk}", row.finished_at or since, row.project, f"Plan stale: {row.plan.name}",
            row.sentence, f"/plans/{row.plan_id}/",
        )
        for row in rows.select_related("project", "plan").defer("plan__result", "log", "plan__log")
    ])  # fmt: skip


# Reading -----------------------------------------------------------------------------------------------------


def staleness_of(plan: Plan) -> Staleness | None:
    """None of a plan without an answer."""
    return staleness_by_id([plan]).get(plan.pk)


def staleness_by_id(plans: Sequence[Plan]) -> dict[uuid.UUID, Staleness]:
    """Of those that are done, in a query or two however many there are. Their calibrations should be there already."""
    done = [plan for plan in plans if plan.status == Plan.DONE]
    if not done:
        return {}
    newest = newest_of({plan.calibration.project_id for plan in done})
    later: dict[uuid.UUID, Calibration] = {}
    for plan in done:
        if (found := _latest(plan.calibration, plan.second_calibration, newest)) is not None:
            later[plan.pk] = found
    reviews: dict[Any, PlanReview] = {}
    if later:
        rows = PlanReview.objects.filter(plan__in=later).defer("log", "traceback")
        for row in rows.order_by(F("created_at").asc()):
            reviews[row.plan_id, row.calibration_id] = row
    return {
        plan.pk: _told(reviews.get((plan.pk, later[plan.pk].pk)), _made_again(reviews, plan), later[plan.pk])
        if plan.pk in later
        else Staleness(CURRENT)
        for plan in done
    }


def _made_again(reviews: dict[Any, PlanReview], plan: Plan) -> PlanReview | None:
    """The review after which the plan was made again: later calibrations are its successor's business."""
    return next((row for (pk, _), row in reviews.items() if pk == plan.pk and row.replan_id), None)


def _told(row: PlanReview | None, before: PlanReview | None, later: Calibration) -> Staleness:
    row = row or before
    if row is None or row.is_active:
        return Staleness(
            CHECKING, f"{later.name} is newer; the answer is being looked at again.", later.pk, row
        )
    if row.status != PlanReview.DONE or not row.outcome:
        return Staleness(
            UNCLEAR, f"It could not be looked at again: {row.error or row.status}", later.pk, row
        )
    return Staleness(row.outcome, row.sentence, row.calibration_id, row)
