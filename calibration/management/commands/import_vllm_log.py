"""manage.py import_vllm_log FILE.log[.gz] --model M [--kv-tokens N] --json: what a vLLM logged of its iterations."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration import services, work
from calibration.architecture import PRESETS
from calibration.forms import ImportVllmLogForm
from calibration.management.commands.calibrate import model_of, report_calibration, run_here
from config import commandline as cli


class Command(BaseCommand):
    help = "Turn the log of a vLLM started with --enable-logging-iteration-details into a calibration."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="the server's log from its first line, also .gz")
        parser.add_argument(
            "--model", required=True, help=f"the path of a config.json, or a preset: {', '.join(PRESETS)}"
        )
        parser.add_argument("--kv-tokens", type=int, help="KV pool [tokens]; default: what the log says")
        parser.add_argument("--device", default="an unnamed device", help="what it ran on, e.g. 'H200'")
        parser.add_argument("--name", default="")
        parser.add_argument("--seed", type=int, default=0)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        model, config = model_of(options["model"])
        paths = {"file": options["file"], **config}
        form = ImportVllmLogForm(
            {**{key: options[key] for key in ("kv_tokens", "device", "name", "seed")},
             **model},
            cli.uploads(**paths),
        )  # fmt: skip
        cli.refuse_invalid(form)
        calibration = services.create_import(project, owner, form.request())
        run_here(calibration, work.fit_imported)
        for remark in calibration.provenance["iterations"]["remarks"]:
            self.stdout.write(remark)
        report_calibration(self, calibration, options["json"])
