"""manage.py fit_check FILE.csv.gz --points 40 --seeds 5: how well a few rows of a step table predict the rest."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from calibration.sources.fit_check import BARS, SeedCheck, fit_check
from calibration.sources.step_csv import StepCsvError, read_step_csv
from config import commandline as cli


class Command(BaseCommand):
    help = "Fit rows chosen by shape, score on all others, seed by seed; exit 1 below the bars."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file")
        parser.add_argument("--points", type=int, default=40)
        parser.add_argument("--seeds", type=int, default=5)
        cli.add_json_argument(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        try:
            samples = read_step_csv(options["file"])
            check = fit_check(samples, points=options["points"], seeds=options["seeds"], on_seed=self._show)
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}", returncode=cli.BAD_INPUT) from error
        except StepCsvError as error:
            raise CommandError("\n".join(error.lines()), returncode=cli.BAD_INPUT) from error
        except ValueError as error:
            raise CommandError(str(error), returncode=cli.BAD_INPUT) from error
        means = {name: check.mean(name) for name in BARS}
        shown = ", ".join(f"{name} {_percent(value)} (bar {BARS[name]:.1%})" for name, value in means.items())
        seeds = f"{len(check.seeds)} seed{'s' * (len(check.seeds) > 1)}"
        self.stdout.write(f"mean over {seeds}, {check.scored} rows scored: {shown}")
        for failure in check.failures:
            self.stdout.write(f"below the bar: {failure}")
        if options["json"]:
            cli.print_json(self, check.to_dict())
        cli.leave(cli.BELOW if check.failures else cli.OK)

    def _show(self, seed: SeedCheck) -> None:
        figures = ", ".join(f"{name} {_percent(getattr(seed, name))}" for name in BARS)
        waves = f"whole tiles of {seed.tile} tokens (ramp {seed.ramp})" if seed.tile else "no tiles"
        falls = f"falls with more work at {seed.violations} of 500 places"
        self.stdout.write(f"seed {seed.seed}: {figures}; the law {falls}, prices {waves}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}" if value < 0 else f"{value:.2%}"
