"""Starting an import, and the work behind it: a held file becomes a traffic, in a worker or at once."""

from __future__ import annotations

import uuid
from dataclasses import fields, replace
from typing import IO, Any

from django.conf import settings
from django.db import transaction

from calibration import jobs
from calibration.jobs import JobRefused, JobRun
from calibration.patience import patiently
from calibration.starting import written_once
from planner import traffic_rows, uploads
from planner.models import HeldUpload, TrafficImport, TrafficSet
from planner.traffic import LIMITS, ImportOptions, Limits, TrafficError, read_traffic
from planner.traffic.stream import unpacks_beyond

FILE_GONE = "The file is no longer here: upload it again."


def limits() -> Limits:
    return replace(LIMITS, file_bytes=settings.MAX_UPLOAD_BYTES, unpacked_bytes=settings.MAX_UNPACKED_BYTES)


def is_large(file: IO[bytes], size_bytes: int) -> bool:
    """Whether a worker should read it: by what it holds, not by how well it is packed."""
    if size_bytes > settings.IMMEDIATE_IMPORT_BYTES:
        return True
    file.seek(0)
    large = unpacks_beyond(file, limits(), settings.IMMEDIATE_IMPORT_BYTES)
    file.seek(0)
    return large


def options_of(values: dict[str, Any]) -> ImportOptions:
    """The options among a form's cleaned values or a row's; what is missing is at its default."""
    known = {field.name for field in fields(ImportOptions)}
    return ImportOptions(
        **{key: value for key, value in values.items() if key in known and value is not None}
    )


def start_import(
    upload: HeldUpload,
    owner: Any,
    name: str,
    options: dict[str, Any],
    *,
    keep: bool,
    rerun_of: Any = None,
    default_named: bool = False,
    pk: uuid.UUID | None = None,
) -> TrafficImport:
    """Writes the row and sends the job to queue ``default``. `default_named`, `pk`: as of `store_traffic`."""
    from planner import tasks

    row = TrafficImport(
        pk=pk or uuid.uuid4(), project=upload.project, owner=owner, name=name[:120], upload=upload,
        file_name=upload.name, size_bytes=upload.size_bytes, keep_file=keep, rerun_of=rerun_of,
        options={**options, "default_named": True} if default_named else options,
    )  # fmt: skip

    def write() -> TrafficImport:
        row.save(force_insert=True)
        jobs.send_after_commit(row, tasks.run_import)
        return row

    found: TrafficImport = written_once(TrafficImport.objects.all(), pk, write)
    return found


def import_now(
    upload: HeldUpload,
    owner: Any,
    name: str,
    options: ImportOptions,
    *,
    keep: bool,
    default_named: bool = False,
    pk: uuid.UUID | None = None,
) -> TrafficSet:
    """Reads the held file while its owner waits. TrafficError; FileNotFoundError where it has gone."""
    with uploads.opened(upload) as file:
        traffic = read_traffic(file, options, name=upload.name, limits=limits())
    row = traffic_rows.create_traffic(
        upload.project, owner, name, traffic, default_named=default_named, pk=pk
    )
    settle(upload, row, keep=keep)
    return row


def settle(upload: HeldUpload, traffic: TrafficSet, *, keep: bool) -> None:
    """The original after its import: deleted, or kept for its owner."""
    if keep:
        uploads.keep(upload, traffic)
    else:
        uploads.delete(upload)


def import_traffic(row: TrafficImport, run: JobRun) -> None:
    """Reads the file with its row's options; stores the traffic, deletes the file unless it is kept."""
    upload = row.upload
    if upload is None:
        raise JobRefused(FILE_GONE)

    def on_progress(read_bytes: int, rows: int) -> None:
        run.progress(min(read_bytes, row.size_bytes - 1), row.size_bytes, f"{rows:,} rows read")
        run.check()

    try:
        with uploads.opened(upload) as file:
            traffic = read_traffic(
                file, options_of(row.options), name=row.file_name, limits=limits(), on_progress=on_progress
            )
    except FileNotFoundError as error:
        raise JobRefused(FILE_GONE) from error
    except TrafficError as error:
        problems = [problem.to_dict() for problem in error.errors]
        patiently(lambda: TrafficImport.objects.filter(pk=row.pk).update(problems=problems))
        raise JobRefused(error.detail) from error
    run.progress(row.size_bytes - 1, row.size_bytes, "Storing")
    run.check()
    counts = f"{traffic.rows_read:,} rows read, {traffic.requests:,} requests."
    packed = traffic_rows.pack_traffic(traffic)
    del traffic
    run.write_log(counts)
    with transaction.atomic():
        stored = traffic_rows.store_traffic(
            row.project, row.owner, row.name, packed, default_named=bool(row.options.get("default_named"))
        )
        TrafficImport.objects.filter(pk=row.pk).update(traffic=stored)
        if row.keep_file:
            uploads.keep(upload, stored)
        run.end()
    if not row.keep_file:
        uploads.delete(upload)
