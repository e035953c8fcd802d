"""manage.py drift_check CALIBRATION --json: is the device still as fast as when it was calibrated?"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from calibration import services
from calibration.engine.client import EngineError
from calibration.models import Calibration
from config import commandline as cli


class Command(BaseCommand):
    help = "Time a few steps of a calibration again on its device; exit 1 when it should be measured anew."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("calibration", help="its id, or its name (the newest of that name)")
        parser.add_argument("--seed", type=int, default=0)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, _ = cli.owner_and_project(options)
        calibration = self._calibration(owner, options["calibration"])
        try:
            report = services.drift_of(calibration, options["seed"], self.stdout.write)
        except ValueError as error:
            errors = [{"field": "calibration", "message": str(error)}]
            raise cli.BadInput(f"{calibration.name}: {error}", errors) from error
        except EngineError as error:
            raise CommandError(str(error), returncode=cli.BELOW) from error
        for sentinel in report.sentinels:
            then, now = sentinel.then_s * 1e3, sentinel.now_s * 1e3
            self.stdout.write(
                f"{sentinel.step}: {then:.3f} ms then, {now:.3f} ms now ({now / then - 1:+.1%})"
            )
        moved = report.mean
        words = "; ".join(report.reasons) or "nothing that would call for measuring anew"
        self.stdout.write(
            f"mean log ratio {moved.log_ratio:+.3f} [{moved.low:+.3f}, {moved.high:+.3f}]: {words}"
        )
        if options["json"]:
            cli.print_json(self, {"calibration": str(calibration.pk), **report.to_dict()})
        cli.leave(cli.BELOW if report.drifted else cli.OK)

    def _calibration(self, owner: Any, named: str) -> Calibration:
        rows = Calibration.objects.visible_to(owner).filter(status=Calibration.DONE)
        found = rows.filter(name=named).first() or services.by_id(rows, named)
        if found is None:
            message = f"no finished calibration is named {named!r}"
            raise cli.BadInput(message, [{"field": "calibration", "message": message}])
        return found
