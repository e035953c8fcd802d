"""What the management commands share: whose rows they write, how they print, what their exit codes mean.

Exit 0: the answer holds. 1: below the bar. 2: bad input. 3: refused by a gate. With ``--json`` the last line
of standard output is one JSON object, also after a failure: then it is the API's {"detail", "errors"}.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO

from django import forms
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import UploadedFile
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.http import Http404
from django.utils.datastructures import MultiValueDict

from accounts.access import current_project
from accounts.models import Project
from accounts.single_user import local_user
from calibration import strict_json
from calibration.telling import Teller

OK, BELOW, BAD_INPUT, REFUSED = 0, 1, 2, 3


class BadInput(CommandError):
    """Exit 2. ``errors`` are the fields' messages, as the API gives them."""

    def __init__(self, message: str, errors: Sequence[dict[str, str]] = ()) -> None:
        super().__init__(message, returncode=BAD_INPUT)
        self.errors = list(errors)


def add_json_argument(parser: CommandParser) -> None:
    """``--json``, which arguments that cannot be read obey as well."""
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    usage_error = parser.error

    def error(message: str) -> Any:
        if parser.called_from_command_line and "--json" in sys.argv:
            sys.stdout.write(strict_json.write(_failure(message, _usage(message))) + "\n")
            sys.stdout.flush()
        usage_error(message)

    parser.error = error  # type: ignore[method-assign]


def failures_as_json(handle: Callable[..., None]) -> Callable[..., None]:
    """Around ``Command.handle``: with ``--json`` what went wrong is the last line as well as the exit code."""

    @wraps(handle)
    def wrapper(command: BaseCommand, *args: Any, **options: Any) -> None:
        try:
            handle(command, *args, **options)
        except CommandError as error:
            if options["json"]:
                print_json(
                    command, _failure(str(error).partition("\n")[0].rstrip(":"), getattr(error, "errors", ()))
                )
            raise

    return wrapper


def _failure(detail: str, errors: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
    """Every refusal names a field, or "" where no single one is to blame."""
    return {"detail": detail, "errors": list(errors) or [{"field": "", "message": detail}]}


def _usage(message: str) -> list[dict[str, str]]:
    """The fields that argparse speaks of: "argument --seed: ...", "... are required: --calibration, --traffic"."""
    one = re.match(r"argument (\S+?)(?:/\S+)*: (.*)", message)
    if one:
        return [{"field": _field(one[1]), "message": one[2]}]
    several = re.match(r"the following arguments are required: (.*)", message)
    names = several[1].split(", ") if several else []
    return [{"field": _field(name), "message": "This is required."} for name in names]


def _field(option: str) -> str:
    return option.split("/")[0].lstrip("-").replace("-", "_")


def add_owner_arguments(parser: CommandParser) -> None:
    parser.add_argument("--user", help="whose rows to write (needed unless in single-user mode)")
    parser.add_argument("--project", help="slug of the project (default: the user's first)")


def owner_and_project(options: dict[str, Any]) -> tuple[Any, Project]:
    """Raises CommandError (exit 2) for a user or project that does not exist."""
    user: Any
    if options.get("user"):
        user = get_user_model().objects.filter(username=options["user"]).first()
    else:
        user = local_user() if settings.SINGLE_USER else None
    if user is None:
        raise BadInput("name an existing user with --user")
    try:
        return user, current_project(user, options.get("project"))
    except Http404 as error:
        slug = options.get("project")
        where = f"has no project {slug!r} to write to" if slug else "may write to no project"
        message = f"{user.get_username()} {where}"
        raise BadInput(message, [{"field": "project" if slug else "user", "message": message}]) from error


def uploads(**paths: str) -> MultiValueDict[str, UploadedFile[Any]]:
    """Files of this machine, by field, as the forms take them: open, and read as far as the form reads. They close
    with the last that holds them. Raises CommandError (exit 2)."""
    files: MultiValueDict[str, UploadedFile[Any]] = MultiValueDict()
    for field, path in paths.items():
        opened, size = open_regular(path, field)
        files[field] = UploadedFile(opened, Path(path).name, size=size)
        weakref.finalize(files[field], opened.close)
    return files


def open_regular(path: str, field: str) -> tuple[BinaryIO, int]:
    """The file, open, and its size in bytes. BadInput for what cannot be read or, as a device or a pipe, has no end
    that anybody knows."""
    try:
        if not stat.S_ISREG(
            Path(path).stat().st_mode
        ):  # before it is opened: a pipe would wait for its writer
            raise ValueError("not a regular file")
        opened = Path(path).open("rb")  # noqa: SIM115  # whoever asked closes it
        return opened, os.fstat(opened.fileno()).st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{path}: {reason}", [{"field": field, "message": reason}]) from error


def text_of(path: str, field: str, most_bytes: int = 2_000_000) -> str:
    """A file's text, UTF-8. BadInput, also for more than `most_bytes`."""
    opened, _ = open_regular(path, field)
    with opened:
        content = opened.read(most_bytes + 1)
    try:
        if len(content) > most_bytes:
            raise ValueError(f"more than {most_bytes:,} bytes")
        return content.decode("utf-8-sig")
    except ValueError as error:
        raise BadInput(f"{path}: {error}", [{"field": field, "message": str(error)}]) from error


def refuse_invalid(form: forms.BaseForm) -> None:
    """Raises BadInput with every error and its field; does nothing for a valid form."""
    if form.is_valid():
        return
    errors = [
        {"field": "" if field == "__all__" else field, "message": message}
        for field, messages in form.errors.get_json_data().items()
        for message in (entry["message"] for entry in messages)
    ]
    lines = "\n".join(f"  {error['field'] or 'input'}: {error['message']}" for error in errors)
    raise BadInput(f"these fields are not valid:\n{lines}", errors)


def print_json(command: BaseCommand, data: dict[str, Any]) -> None:
    command.stdout.write(strict_json.write(data))


@contextmanager
def telling() -> Iterator[Teller]:
    """Standard error for what a long command says meanwhile; the line of progress is taken away at the end."""
    teller = Teller(sys.stderr)
    try:
        yield teller
    finally:
        teller.end()


def leave(code: int) -> None:
    """Ends the command with an exit code other than 0; flushes first, so that the JSON line is the last."""
    if code:
        sys.stdout.flush()
        raise SystemExit(code)
