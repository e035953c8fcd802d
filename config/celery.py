"""The Celery application. Two queues: ``device`` (one process; measures) and ``default`` (everything else)."""

from __future__ import annotations

import os

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

from config.pool_guard import PoolGuard

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# A worker serves no URL: Django's checks would load every page and chart into it. `migrate` checks all the same.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

TRANSPORT_ALIASES["filesystem"] = "config.filesystem_broker:Transport"
app = Celery("ridgeline")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add(PoolGuard)
