"""The web process's part in job tests: a process of its own that calls the services, as a view would.

Reads one JSON request a line ({"call": name, "arguments": {...}}), answers one JSON line. Its environment says which
database and queue it uses.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.utils import timezone  # noqa: E402

from accounts.access import current_project  # noqa: E402
from accounts.single_user import local_user  # noqa: E402
from calibration import jobs, services, tasks  # noqa: E402
from calibration.forms import CalibrateForm  # noqa: E402
from calibration.models import Calibration  # noqa: E402
from config.celery import app  # noqa: E402


def start(config: dict[str, Any], kv_tokens: int, **envelope: int) -> str:
    """Starts a calibration as the page does: form, service, message."""
    user = local_user()
    form = CalibrateForm(
        {
            "model": "config",
            "config_text": json.dumps(config),
            "device": "cpu",
            "kv_tokens": kv_tokens,
            **envelope,
        }
    )
    assert form.is_valid(), form.errors.as_text()
    return str(services.start_calibration(current_project(user), user, form.request()).pk)


def row(pk: str) -> dict[str, Any]:
    job = Calibration.objects.get(pk=pk)
    return {
        "status": job.status, "done": job.done, "total": job.total, "percent": job.percent, "eta_s": job.eta_s,
        "message": job.message, "log": job.log, "error": job.error, "worker": job.worker, "published": job.published,
        "started_at": str(job.started_at), "finished_s": job.finished_at and job.finished_at.timestamp(),
        "ordinals": list(job.samples.values_list("ordinal", flat=True)),
    }  # fmt: skip


def cancel(pk: str) -> bool:
    return jobs.request_cancel(Calibration.objects.get(pk=pk))


def rerun(pk: str) -> str:
    return str(services.rerun(Calibration.objects.get(pk=pk), local_user()).pk)


def send(pk: str) -> str:
    """Delivers the job's message once more; the message's id."""
    return str(tasks.run_calibration.apply_async(args=[pk]).id)


def age(pk: str, seconds: float) -> None:
    """As if the message had been sent ``seconds`` ago."""
    Calibration.objects.filter(pk=pk).update(sent_at=timezone.now() - timedelta(seconds=seconds))


def pickled(path: str) -> None:
    """A message that would touch ``path`` if anybody unpickled it."""
    with app.connection_for_write() as connection, connection.SimpleQueue("default") as queue:
        queue.put(
            Touch(path), serializer="pickle", headers={"task": "calibration.tasks.run_calibration", "id": "x"}
        )


class Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


CALLS = {call.__name__: call for call in (start, row, cancel, rerun, send, age, pickled)}

if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": CALLS[request["call"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
