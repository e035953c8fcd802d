"""Files that were uploaded and not imported yet, or that their owner wants kept.

They may hold texts that nobody but their owner should read, so they stand in a folder of their own (0700), under
a random name (0600), are seen by their owner alone, and are deleted: after the import, when their owner says so,
and at the latest HOURS after the upload. A file comes into being under its name only when it is whole; what an
interrupted upload left, the sweep removes.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.models import Project
from planner.models import HeldUpload, TrafficImport

HOURS = 2
MOST_HELD = 5
_PART = ".part"
_ORPHAN_AFTER_S = 3_600.0


def folder() -> Path:
    path = Path(settings.DATA_DIR) / "uploads"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def path_of(row: HeldUpload) -> Path:
    return folder() / row.pk.hex


def hold(
    project: Project, owner: Any, upload: UploadedFile[Any], name: str, *, pk: uuid.UUID | None = None
) -> HeldUpload:
    """Puts the file aside for two hours. Of one person's waiting files the newest MOST_HELD stay. `pk`: of a form
    (config/once.py); what is held already for the same form is the answer."""
    if pk and (there := HeldUpload.objects.filter(pk=pk).first()) is not None:
        return there
    row = HeldUpload(
        pk=pk or uuid.uuid4(), project=project, owner=owner, name=name[:255], size_bytes=upload.size or 0,
        expires_at=timezone.now() + timedelta(hours=HOURS),
    )  # fmt: skip
    part = path_of(row).with_name(f"{row.pk.hex}.{uuid.uuid4().hex}{_PART}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        upload.seek(0)
        with os.fdopen(descriptor, "wb") as file:
            for chunk in upload.chunks(1 << 20):
                file.write(chunk)
        part.rename(path_of(row))
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:  # the same form came twice at once: its file lies there, whole
        return HeldUpload.objects.get(pk=row.pk)
    except BaseException:
        part.unlink(missing_ok=True)
        path_of(row).unlink(missing_ok=True)
        raise
    for old in waiting(owner)[MOST_HELD:]:
        delete(old)
    return row


def waiting(owner: Any) -> list[HeldUpload]:
    """Held for a while and not in a running import, the newest first."""
    busy = TrafficImport.objects.active().values("upload")
    return list(HeldUpload.objects.of(owner).filter(expires_at__isnull=False).exclude(pk__in=busy))


def opened(row: HeldUpload) -> IO[bytes]:
    """FileNotFoundError where it has been deleted meanwhile."""
    return path_of(row).open("rb")


def pieces(row: HeldUpload) -> Iterator[bytes]:
    """The file's content, opened when the first piece is asked for."""
    with opened(row) as file:
        while piece := file.read(1 << 16):
            yield piece


def keep(row: HeldUpload, traffic: Any) -> None:
    """As long as its owner does not delete it."""
    HeldUpload.objects.filter(pk=row.pk).update(expires_at=None, traffic=traffic)


def delete(row: HeldUpload) -> None:
    """The row first: where this is cut short, a file without a row is what the sweep removes."""
    HeldUpload.objects.filter(pk=row.pk).delete()
    path_of(row).unlink(missing_ok=True)


def sweep() -> int:
    """Deletes what has expired, and files without a row. Returns how many. Safe to run anywhere, any time."""
    busy = TrafficImport.objects.active().values("upload")
    expired = HeldUpload.objects.filter(expires_at__lt=timezone.now()).exclude(pk__in=busy)
    count = 0
    for row in expired:
        delete(row)
        count += 1
    return count + _sweep_files()


def _sweep_files() -> int:
    """Files that no row knows and that nobody has touched for an hour."""
    count = 0
    before_s = time.time() - _ORPHAN_AFTER_S
    for path in [*folder().iterdir(), *Path(settings.FILE_UPLOAD_TEMP_DIR).iterdir()]:
        try:
            if not path.is_file() or path.stat().st_mtime > before_s or _known(path.name):
                continue
            path.unlink()
            count += 1
        except FileNotFoundError:
            continue
    return count


def _known(name: str) -> bool:
    try:
        return HeldUpload.objects.filter(pk=uuid.UUID(hex=name)).exists()
    except ValueError:
        return False
