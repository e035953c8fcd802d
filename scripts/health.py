"""``python scripts/health.py web|device|default|beat``: exit 0 when that service of this container is well.

The health checks of docker-compose.yml. The web server is asked as the TLS proxy would ask it; a worker answers a
ping over the broker; beat is well while the sweep of jobs was sent within the last minutes.
"""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# The scheduler writes to the database what it sent every three minutes.
BEAT_SILENT_S = 400


def web() -> bool:
    host = os.environ.get("ALLOWED_HOSTS", "localhost").split(",")[0].strip().lstrip(".")
    address = os.environ.get("HEALTH_URL", "http://127.0.0.1:8000/healthz")
    request = urllib.request.Request(address, headers={"Host": host, "X-Forwarded-Proto": "https"})
    with urllib.request.urlopen(request, timeout=4) as response:
        return bool(response.status == 200)


def worker(queue: str) -> bool:
    from config.celery import app

    name = f"{queue}@{socket.gethostname()}"
    return bool(app.control.broadcast("ping", reply=True, destination=[name], timeout=8, limit=1))


def beat() -> bool:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    from django.utils import timezone
    from django_celery_beat.models import PeriodicTask

    since = timezone.now() - timedelta(seconds=BEAT_SILENT_S)
    return any(
        (task.last_run_at or task.date_changed) > since
        for task in PeriodicTask.objects.filter(name__startswith="sweep-")
    )


if __name__ == "__main__":
    checks: dict[str, Callable[[], bool]] = {
        "web": web, "beat": beat, "device": partial(worker, "device"), "default": partial(worker, "default"),
    }  # fmt: skip
    if len(sys.argv) != 2 or sys.argv[1] not in checks:
        sys.exit(f"usage: health.py {'|'.join(checks)}")
    try:
        well = checks[sys.argv[1]]()
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.exit(0 if well else "no answer")
