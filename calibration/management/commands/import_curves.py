"""manage.py import_curves FILE [SECOND] --model M [--kv-tokens N] --json: curves that others published."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration import services, work
from calibration.architecture import PRESETS
from calibration.curve_forms import ImportCurvesForm
from calibration.management.commands.calibrate import model_of, report_calibration, run_here
from config import commandline as cli

FIELDS = ("kv_tokens", "device", "hardware", "context_tokens", "engine", "name", "seed")


class Command(BaseCommand):
    help = "Turn published curves (Dynamo's npz, Sarathi's figure 2, Splitwise's table) into a calibration."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="npz or CSV, the CSV also .gz; what it is is told by its content")
        parser.add_argument(
            "second_file", nargs="?", help="the other half, where prefill and decode are two files"
        )
        parser.add_argument(
            "--model", required=True, help=f"the path of a config.json, or a preset: {', '.join(PRESETS)}"
        )
        parser.add_argument(
            "--kv-tokens", type=int, help="KV pool [tokens]; default: what Dynamo's profile says"
        )
        parser.add_argument(
            "--device", default="an unnamed device", help="what it was measured on, e.g. 'H200'"
        )
        parser.add_argument("--hardware", default="", help="which rows of Splitwise's table, e.g. a100-80gb")
        parser.add_argument(
            "--context-tokens", type=int, help="context of the decodes of Sarathi's figure 2 [tokens]"
        )
        parser.add_argument("--engine", default="", help="whose step times they are, e.g. 'vllm 0.19.0'")
        parser.add_argument("--name", default="")
        parser.add_argument("--seed", type=int, default=0)
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        model, config = model_of(options["model"])
        paths = {"file": options["file"], **config}
        if options["second_file"]:
            paths["second_file"] = options["second_file"]
        form = ImportCurvesForm(
            {**{key: options[key] for key in FIELDS}, **model},
            cli.uploads(**paths),
        )
        cli.refuse_invalid(form)
        calibration = services.create_import(project, owner, form.request())
        run_here(calibration, work.fit_imported)
        told = calibration.provenance["published"]
        self.stdout.write(f"{told['form']}; taken for granted: {told['taken_for_granted']}")
        report_calibration(self, calibration, options["json"])
