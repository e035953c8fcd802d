"""Traffic that a worker makes, and models that it fits: starting the job, and the work behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django import forms
from django.db import transaction

from calibration.jobs import JobRefused, JobRun
from calibration.patience import patiently
from calibration.starting import start_once
from planner import traffic_rows
from planner.fit_forms import FitForm
from planner.forms import SynthesiseForm
from planner.generate_forms import GenerateForm
from planner.models import TrafficJob, TrafficSet
from planner.shape_forms import ShapeForm
from planner.traffic import Traffic

Made = TypeVar("Made")
GONE = "The traffic that this was about is no longer there."


def start(
    kind: str, project: Any, owner: Any, name: str, options: dict[str, Any], *, parent: TrafficSet | None = None,
    rerun_of: TrafficJob | None = None,
) -> TrafficJob:  # fmt: skip
    """Writes the row and sends the job to queue ``default``; while the same is being made, that job instead."""
    from planner import tasks

    row = TrafficJob(
        kind=kind, project=project, owner=owner, name=name[:120], options=options, parent=parent,
        rerun_of=rerun_of,
    )  # fmt: skip
    return start_once(row, ("kind", "name", "options", "parent_id"), tasks.run_traffic)


def work(row: TrafficJob, run: JobRun) -> None:
    """What the row asks for, through the form that took it."""
    {
        TrafficJob.SHAPE: _shape,
        TrafficJob.GENERATE: _generate,
        TrafficJob.SYNTHESISE: _synthesise,
        TrafficJob.FIT: _fit,
    }[row.kind](row, run)


def _shape(row: TrafficJob, run: JobRun) -> None:
    total = len(row.options["operations"]) + 2

    def on_step(index: int) -> None:
        _at(run, index + 1, total, f"Operation {index + 1} of {total - 2}")

    _at(run, 0, total, "Reading")
    form = ShapeForm(row.options, traffic=_parent(row), user=row.owner, on_step=on_step)
    _store(row, run, _made(row, form, form.traffic), total)


def _generate(row: TrafficJob, run: JobRun) -> None:
    _at(run, 0, 2, "Drawing requests")
    form = GenerateForm(row.options, project=row.project, user=row.owner)
    _store(row, run, _made(row, form, form.traffic), 2)


def _synthesise(row: TrafficJob, run: JobRun) -> None:
    _at(run, 0, 2, "Drawing requests")
    form = SynthesiseForm(row.options)
    _store(row, run, _made(row, form, form.traffic), 2)


def _fit(row: TrafficJob, run: JobRun) -> None:
    from planner.charts.compare import COMPARISON_FIGURES, comparison_figure

    parent = _parent(row)
    form = FitForm(row.options, traffic=parent, on_step=lambda done, of: _at(run, done, of + 1, "Fitting"))
    _made(row, form, lambda: form.report)
    found = form.found
    assert found is not None  # noqa: S101  # a valid form has it
    sides = (("held-out half", found.heldout), ("model", found.synthetic))
    figures = {
        name: comparison_figure(name, *sides, f"{parent.name}: {name}, held out and model")
        for name in COMPARISON_FIGURES
    }
    result = {"report": found.report.to_dict(), "figures": figures}
    with transaction.atomic():
        TrafficJob.objects.filter(pk=row.pk).update(result=result)
        run.end()


def _parent(row: TrafficJob) -> TrafficSet:
    if row.parent is None:
        raise JobRefused(GONE)
    return row.parent


def _at(run: JobRun, done: int, total: int, message: str) -> None:
    run.progress(done, total, message)
    run.check()


def _made(row: TrafficJob, form: forms.Form, made: Callable[[], Made]) -> Made:
    """What the form makes; where it refuses, the row says so by field."""
    if form.is_valid():
        return made()
    problems = [
        {"field": "" if field == "__all__" else field, "message": str(message)}
        for field, messages in form.errors.items()
        for message in messages
    ]
    patiently(lambda: TrafficJob.objects.filter(pk=row.pk).update(problems=problems))
    raise JobRefused(problems[0]["message"])


def _store(row: TrafficJob, run: JobRun, traffic: Traffic, total: int) -> None:
    _at(run, total - 1, total, f"Describing and storing {traffic.requests:,} requests")
    packed = traffic_rows.pack_traffic(traffic)
    del traffic
    run.check()
    run.write_log(f"{packed.columns['statistics']['requests']:,} requests.")
    with transaction.atomic():
        stored = traffic_rows.store_traffic(
            row.project, row.owner, row.name, packed, default_named=bool(row.options.get("default_named"))
        )
        TrafficJob.objects.filter(pk=row.pk).update(traffic=stored)
        run.end()
