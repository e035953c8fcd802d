"""manage.py reference_results: run the reference checks and keep what they answered, for the accuracy page."""

from __future__ import annotations

import datetime
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from config import commandline as cli
from planner.reference_checks import CHECKS, Check, Reference, checksums, read_results, write_results

DEFAULT_DATA = Path(os.environ.get("REFERENCE_DATA") or settings.BASE_DIR.parent / "shared" / "data")


class Command(BaseCommand):
    help = "Run the reference checks on recorded data; exit 1 when one is below its bars."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--data",
            type=Path,
            default=DEFAULT_DATA,
            help="folder with the recordings (default: REFERENCE_DATA, else ../shared/data)",
        )
        parser.add_argument(
            "--out", type=Path, default=settings.REFERENCE_RESULTS, help="the file that is written"
        )
        parser.add_argument("--only", action="append", choices=[check.name for check in CHECKS],
                            help="run only this one, and keep what the file has of the others")  # fmt: skip
        cli.add_json_argument(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        wanted = options["only"] or [check.name for check in CHECKS]
        kept = {row.name: row for row in read_results(options["out"])}
        for check in CHECKS:
            if check.name not in wanted:
                continue
            row = self._run(check, options["data"])
            kept[check.name] = row
            write_results(options["out"], list(kept.values()))  # each as it comes: they take minutes together
            verdict = "holds" if row.holds else f"exit {row.exit_code}"
            self.stdout.write(f"{check.name}: {verdict}, {row.cpu_s:.1f} s of CPU time")
        held = {name: kept[name].holds for name in wanted}
        if options["json"]:
            cli.print_json(self, {"out": str(options["out"]), "holds": held})
        cli.leave(cli.OK if all(held.values()) else cli.BELOW)

    def _run(self, check: Check, folder: Path) -> Reference:
        try:
            data = checksums(folder, check.files)
        except OSError as error:
            message = (
                f"{error.filename}: {error.strerror}. The recordings are other people's data, not part of Ridgeline: "
                "name the folder that has them with --data or REFERENCE_DATA (docs/commands.md, Recordings)."
            )
            raise cli.BadInput(message, [{"field": "data", "message": message}]) from error
        words = [str(folder / word) if "/" in word else word for word in check.arguments]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = subprocess.run(  # noqa: S603  our own command
            [sys.executable, str(settings.BASE_DIR / "manage.py"), *words, "--json"],
            capture_output=True, text=True, cwd=settings.BASE_DIR, check=False,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if ran.returncode not in (cli.OK, cli.BELOW):
            raise CommandError(f"{check.name}: {(ran.stdout + ran.stderr)[-2000:]}", returncode=cli.BELOW)
        answer = json.loads(ran.stdout.splitlines()[-1])
        return Reference(
            name=check.name, title=check.title, group=check.group, command=" ".join(["manage.py", *check.arguments]),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(), commit=commit(), exit_code=ran.returncode,
            cpu_s=round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1), data=data,
            figures=[{"name": f.name, "value": f.value, "unit": f.unit, "bar": f.bar, "holds": f.holds}
                     for f in check.read(answer)],
        )  # fmt: skip


def commit() -> str:
    """The checkout's commit, with a + where code other than tests has changed since; empty outside of one."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "*.py", ":!tests")
    except (OSError, subprocess.SubprocessError):
        return ""
    return head + ("+" if changed else "")


def _git(*words: str) -> str:
    answer = subprocess.run(  # noqa: S603  fixed words
        ["git", *words],  # noqa: S607  whichever git the path has
        capture_output=True, text=True, cwd=settings.BASE_DIR, check=True,
    )  # fmt: skip
    return answer.stdout.strip()
