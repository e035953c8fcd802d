"""manage.py import_steps FILE.csv[.gz] --model M --kv-tokens N --json: step times measured elsewhere."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration import services, work
from calibration.architecture import PRESETS
from calibration.forms import ImportStepsForm
from calibration.management.commands.calibrate import model_of, report_calibration, run_here
from config import commandline as cli


class Command(BaseCommand):
    help = "Turn a CSV of step samples into a calibration with its provenance."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="CSV, also .gz: prefill_tokens, prefill_context, decode_seqs, "
                                         "decode_context, step_ms or step_s")  # fmt: skip
        parser.add_argument(
            "--model", required=True, help=f"the path of a config.json, or a preset: {', '.join(PRESETS)}"
        )
        parser.add_argument(
            "--kv-tokens", type=int, required=True, help="KV pool the engine reported [tokens]"
        )
        parser.add_argument(
            "--device", default="an unnamed device", help="what it was measured on, e.g. 'RTX 4090'"
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
        form = ImportStepsForm(
            {**{key: options[key] for key in ("kv_tokens", "device", "engine", "name", "seed")},
             **model},
            cli.uploads(**paths),
        )  # fmt: skip
        cli.refuse_invalid(form)
        calibration = services.create_import(project, owner, form.request())
        run_here(calibration, work.fit_imported)
        report_calibration(self, calibration, options["json"])
