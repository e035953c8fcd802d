"""``manage.py demo``: what it says and its exit status. The workers' part is done at once, with a fitted model; the
real thing runs in CI (``make demo ARGS=--exit``)."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from calibration import jobs
from calibration.models import Calibration
from config import tree
from planner import work
from planner.models import Plan
from planner.progress import describe

pytestmark = pytest.mark.django_db(transaction=True)
ENDS: dict[str, dict[str, Any]] = {
    "published": {"status": "done", "published": True, "reason": "held-out error: median 1 %"},
    "refused": {"status": "done", "published": False, "reason": "held-out median 9 % is above 6 %"},
    "failed": {"status": "failed", "error": "the engine process ended"},
}


class Idle:
    def tick(self) -> None:
        pass


@pytest.fixture
def demo(monkeypatch, settings, calibration_result) -> Callable[..., tuple[int, str]]:
    """Runs the command with a tree that is none; the calibration ends as told. Gives exit status and output."""
    settings.SINGLE_USER = True

    @contextmanager
    def running(**_: Any) -> Iterator[tree.Tree]:
        yield tree.Tree("http://127.0.0.1:8000", Idle())  # type: ignore[arg-type]

    def run(end: str) -> tuple[int, str]:
        def send(task: Any, pk: Any) -> None:
            if task.name == "calibration.tasks.run_calibration":
                Calibration.objects.filter(pk=pk).update(**ENDS[end], result=calibration_result)
            else:
                jobs.run(Plan, str(pk), work.plan)

        monkeypatch.setattr(jobs, "_send", send)
        monkeypatch.setattr(tree, "running", running)
        out = io.StringIO()
        try:
            call_command("demo", "--exit", stdout=out)
        except SystemExit as end_of_it:
            return int(end_of_it.code or 0), out.getvalue()
        return 0, out.getvalue()

    return run


def test_it_measures_plans_and_says_where_to_read_it_then_uses_what_is_there(demo):
    status, out = demo("published")
    plan = Plan.objects.get()
    assert status == 0
    assert plan.sentence and plan.sentence in out
    assert f"http://127.0.0.1:8000/plans/{plan.pk}/" in out
    status, again = demo("failed")  # would fail, were anything measured again
    assert status == 0 and "Using the calibration of" in again and "Using the plan of" in again
    assert plan.sentence in again
    assert (Calibration.objects.count(), Plan.objects.count()) == (1, 1)


def test_a_gate_that_refuses_is_exit_3_with_its_words_and_nothing_is_planned(demo):
    status, out = demo("refused")
    assert status == 3
    assert ENDS["refused"]["reason"] in out and "refused" in out
    assert not Plan.objects.exists()
    assert demo("published")[0] == 0, "a refused calibration is not used again"


def test_a_calibration_that_fails_is_exit_1_with_its_error(demo):
    status, out = demo("failed")
    assert status == 1
    assert "failed. the engine process ended" in out


def test_it_is_for_one_person(settings):
    settings.SINGLE_USER = False
    with pytest.raises(CommandError, match="single-user"):
        call_command("demo", "--exit")


def test_progress_in_words():
    job = Plan(status="running", done=45, total=312, eta_s=70.4, message="8 decodes")
    assert describe(job) == "45/312 (14 %), about 70 s left: 8 decodes"
    assert describe(Plan(status="queued")) == "waiting for a worker"
