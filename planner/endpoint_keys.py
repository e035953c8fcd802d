"""API keys of servers that are to be verified: kept for one job, then gone.

A key stands neither in a row nor in a message nor in a log. It waits in a file of its own (0600, in a folder 0700 of
the data directory, which the workers share) until its job begins; that reads it once and deletes it. Encrypting it
with a key that stands beside it would protect nothing more. What a job that never began left, the sweep removes. The
row has a mark by which the same key, posted again, is known.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from django.conf import settings
from django.utils.crypto import salted_hmac

KEPT_S = 24 * 3600.0


def folder() -> Path:
    path = Path(settings.DATA_DIR) / "endpoint_keys"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def hold(pk: uuid.UUID, key: str) -> None:
    """For the job with this id, which has none yet."""
    descriptor = os.open(folder() / pk.hex, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key)


def mark(pk: uuid.UUID, key: str) -> str:
    """By which the job of this id is known to have been asked with this key: nothing that the key could be told from,
    nor whether two jobs had the same."""
    return salted_hmac("planner.endpoint_keys", f"{pk.hex}:{key}", algorithm="sha256").hexdigest()


def take(pk: uuid.UUID) -> str | None:
    """The job's key, which is then held no more; None where there is none."""
    path = folder() / pk.hex
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    finally:
        path.unlink(missing_ok=True)


def drop(pk: uuid.UUID) -> None:
    """The job will not begin."""
    (folder() / pk.hex).unlink(missing_ok=True)


def sweep() -> None:
    """Deletes what has waited for longer than KEPT_S."""
    for path in folder().iterdir():
        try:
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)
        except FileNotFoundError:  # its job has begun
            continue
