"""Do two worker processes search a plan nearly twice as fast as one, and to the same answer?

    python -m benchmarks.plan_sharing --steps STEPS.csv.gz --traffic TRACE.csv.gz [--link-gb-per-s 25] [--times 3]

A whole installation in a temporary folder (SQLite, files as queue): real Celery workers with one process, then with
two, plan jobs started as the page starts them. Everything is compiled before, other engines' schedulers too: after an
installation a worker does that beside its first plans, on the processor that the second process is to have. Each worker
first answers the question once per process, so that kernels are loaded. Told per number of processes: the median of the
jobs' wall-clock seconds (claimed to ended), seconds from the start of the job to its first stored answer, and
CPU-seconds of all processes of the worker. The ratio means something only on a machine with two idle processors. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
from django.core.management import call_command

from benchmarks.plan_speed import add_question, question_of
from planner.simulation import ready

WAIT_S = 300.0
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_question(parser)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    with installation():
        ready.wait(lambda: None)
        print(json.dumps(_measured(options)))


@contextmanager
def installation() -> Iterator[None]:
    """A migrated database in a temporary folder, which this process and those it starts use. One thread a process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"RIDGELINE_DATA_DIR": folder, "RIDGELINE_MODE": "single", "PLAN_THREADS": "1"}
        for name in ("DATABASE_URL", "REDIS_URL"):
            os.environ.pop(name, None)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        django.setup()
        call_command("migrate", verbosity=0)
        yield


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    answers = []
    project, user, request = stored_question(options)
    for processes in (1, 2):
        with _worker(processes) as worker:
            for _ in range(processes):  # both processes may need it to be warm
                _run(start(project, user, request))
            runs = []
            cpu_s = _cpu_s(worker.pid)
            for _ in range(options.times):
                runs.append(_run(start(project, user, request)))
            figures[f"processes_{processes}"] = {
                "wall_s": round(statistics.median(run["wall_s"] for run in runs), 2),
                "first_answer_s": round(statistics.median(run["first_s"] for run in runs), 2),
                "cpu_s": round((_cpu_s(worker.pid) - cpu_s) / options.times, 2),
            }
            answers += [run["result"] for run in runs]
    one, two = figures["processes_1"], figures["processes_2"]
    figures["candidates"] = sum(len(candidate["tried"]) for candidate in answers[0]["candidates"])
    figures["times_as_fast"] = round(one["wall_s"] / two["wall_s"], 2)
    figures["identical"] = all(answer == answers[0] for answer in answers)
    return figures


def stored_question(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The question's calibration and traffic as rows: project, user and what `start` takes."""
    from accounts.access import current_project
    from accounts.single_user import local_user
    from calibration.models import Calibration
    from planner import services

    question = question_of(options)
    user = local_user()
    project = current_project(user)
    measured = Calibration.objects.create(
        project=project, owner=user, name="measured", architecture=question.architecture.to_dict(), device="GPU",
        kv_tokens=options.kv_tokens, status=Calibration.DONE, published=True,
        result={"model": question.model.to_dict()},
    )  # fmt: skip
    request = services.PlanRequest(
        name="shared", calibration=measured, objectives=question.objectives, max_replicas=options.max_replicas,
        traffic=services.create_traffic(project, user, "trace", question.traffic), seed=options.seed,
        conditions=question.conditions,
    )  # fmt: skip
    return project, user, request


def start(project: Any, user: Any, request: Any) -> Any:
    from planner import services

    return services.start_plan(project, user, request)


def _run(row: Any) -> dict[str, Any]:
    """Waits for the job's end, asking for little, so that the watching takes nothing from the work."""
    first_s = None
    until_s = time.monotonic() + WAIT_S
    while row.is_active:
        time.sleep(0.05)
        row.refresh_from_db(fields=["status", "started_at", "finished_at"])
        if first_s is None and type(row).objects.filter(pk=row.pk, result__isnull=False).exists():
            first_s = row.elapsed_s
        if time.monotonic() > until_s:
            raise SystemExit(f"the plan is still {row.status} after {WAIT_S:.0f} s")
    row.refresh_from_db()
    if row.status != row.DONE:
        raise SystemExit(f"the plan {row.status}: {row.error}")
    return {"wall_s": row.elapsed_s, "first_s": first_s or row.elapsed_s, "result": row.result}


@contextmanager
def _worker(processes: int) -> Iterator[subprocess.Popen[bytes]]:
    from config import tree

    argv = tree.worker_argv("default", "-c", str(processes))
    environment = os.environ | {"PLAN_HELPERS": str(processes - 1)}
    worker = subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait(timeout=60)


def _cpu_s(pid: int) -> float:
    """User and system seconds of a process and its children, as Linux counts them."""
    children = [int(c) for t in Path(f"/proc/{pid}/task").glob("*/children") for c in t.read_text().split()]
    total = 0.0
    for each in (pid, *children):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


if __name__ == "__main__":
    main()
