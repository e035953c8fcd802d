"""A plan that comes before the simulator is compiled waits for it and says so."""

import subprocess
import sys

import pytest

from calibration.jobs import JobCancelled, JobRun
from planner import work
from planner.models import Plan
from planner.simulation import ready

pytestmark = pytest.mark.django_db
SHORTLY = [sys.executable, "-c", "import time; time.sleep(0.6)"]


@pytest.fixture
def cold(monkeypatch):
    monkeypatch.setattr(ready, "is_ready", lambda engine: False)
    monkeypatch.setattr(ready, "start", lambda: subprocess.Popen(SHORTLY))


def test_it_says_what_it_waits_for_and_goes_on(plan, cold):
    Plan.objects.filter(pk=plan.pk).update(status=Plan.RUNNING)
    work.await_simulator(JobRun(plan), plan)
    plan.refresh_from_db()
    assert plan.message == work.COMPILING and plan.heartbeat_at is not None


def test_it_can_be_cancelled_meanwhile(plan, cold):
    Plan.objects.filter(pk=plan.pk).update(status=Plan.RUNNING, cancel_requested=True)
    with pytest.raises(JobCancelled):
        work.await_simulator(JobRun(plan), plan)


def test_a_plan_waits_before_it_searches(plan, published, monkeypatch):
    class Asked(Exception):
        pass

    def asked(_run, _plan):
        raise Asked

    monkeypatch.setattr(work, "await_simulator", asked)
    plan.calibration = published
    with pytest.raises(Asked):
        work.plan(plan, JobRun(plan))
