"""How a command that verifies a plan ends: the job done in this process, its sentence, and whether it held."""

from __future__ import annotations

from collections.abc import Callable

from django.core.management.base import BaseCommand, CommandError

from calibration import jobs
from config import commandline as cli
from planner.models import Verification
from planner.verifications import UNPUBLISHED


def refuse(reason: str) -> None:
    """Does nothing without a reason. A plan that cannot be verified is the wrong one to name (exit 2), unless the gate
    stands before it (exit 3)."""
    if reason == UNPUBLISHED:
        raise CommandError(reason, returncode=cli.REFUSED)
    if reason:
        raise cli.BadInput(reason, [{"field": "plan", "message": reason}])


def run_and_report(
    command: BaseCommand, row: Verification, does: Callable[[Verification, jobs.JobRun], None], as_json: bool
) -> None:
    """Does the job without a queue and prints its report; leaves with exit 1 where it is not done or misses a bar."""
    with cli.telling() as teller:
        status = jobs.run(Verification, str(row.pk), does, teller)
    row.refresh_from_db()
    if status != Verification.DONE or row.result is None:
        raise CommandError(f"{status}: {row.error or row.message}", returncode=cli.BELOW)
    command.stdout.write(row.sentence)
    if as_json:
        cli.print_json(command, {"verification": str(row.pk), **row.result})
    cli.leave(cli.OK if row.holds else cli.BELOW)
