"""A worker whose pool cannot go on ends itself, so that its supervisor starts it again.

On the filesystem queue Celery's prefork pool hands tasks to its children through one pipe, and an idle child waits
on it with a lock in its hands. If that child is killed (kill -9, the kernel out of memory) the lock is never given
back: the children started in its place wait for ever, no task runs, no sweep marks a lost job, and the parent looks
well. A child killed at work holds no lock: its job alone is lost, and the sweep sees to it. With Redis every child
has a pipe of its own.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import bootsteps

log = logging.getLogger(__name__)
RUNNING = 0  # billiard.pool.RUN


class PoolGuard(bootsteps.StartStopStep):
    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        pool = getattr(parent.pool, "_pool", None)
        if pool is not None and not parent.use_eventloop:
            pool.on_process_down = lambda child: ended(pool, child)


def ended(pool: Any, child: Any) -> None:
    """A child of ``pool`` has ended. Does not return when it may have taken the pool's lock with it."""
    killed = child.exitcode is not None and child.exitcode < 0
    at_work = any(child.pid in job.worker_pids() for job in list(pool._cache.values()) if not job.ready())
    if killed and not at_work and pool._state == RUNNING:
        log.critical("an idle process of the pool was killed and may have held its lock: ending the worker")
        logging.shutdown()
        os._exit(1)
