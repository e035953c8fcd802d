"""manage.py calibrate --model M [--device cpu] [--out FILE] --json: measure here and now, without a queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from calibration import jobs, services, work
from calibration.architecture import PRESETS
from calibration.document import write_document
from calibration.form_parts import CUSTOM
from calibration.forms import CalibrateForm
from calibration.models import Calibration
from config import commandline as cli


class Command(BaseCommand):
    help = (
        "Measure a model on a device of this machine, fit, and publish if the held-out errors pass the gate."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", required=True, help="a preset's name or the path of a config.json")
        parser.add_argument("--device", default="cpu", help="cpu (the default), cuda:0, ...")
        parser.add_argument("--max-batch", type=int, default=16, help="largest decode batch [sequences]")
        parser.add_argument(
            "--max-context-tokens", type=int, default=1024, help="longest prompt and output together [tokens]"
        )
        parser.add_argument(
            "--max-step-tokens", type=int, default=512, help="largest token budget to plan with [tokens]"
        )
        parser.add_argument("--kv-tokens", type=int, help="KV pool [tokens]; default: from free memory")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument(
            "--out", help="write the calibration to this file, which can be imported elsewhere"
        )
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        preset = options["model"] in PRESETS
        form = CalibrateForm(
            {**{key: options[key] for key in ("device", "max_batch", "max_context_tokens", "max_step_tokens",
                                              "kv_tokens", "seed")},
             "model": options["model"] if preset else CUSTOM},
            None if preset else cli.uploads(config_file=options["model"]),
        )  # fmt: skip
        cli.refuse_invalid(form)
        calibration = services.create_calibration(project, owner, form.request())
        status = jobs.run(Calibration, str(calibration.pk), work.measure)
        calibration.refresh_from_db()
        if status != Calibration.DONE:
            raise CommandError(f"{status}: {calibration.error or calibration.message}", returncode=cli.BELOW)
        if options["out"]:
            try:
                Path(options["out"]).write_bytes(write_document(services.document_of(calibration)))
            except OSError as error:
                raise CommandError(f"{options['out']}: {error.strerror}", returncode=cli.BAD_INPUT) from error
        report_calibration(self, calibration, options["json"])


def report_calibration(command: BaseCommand, calibration: Calibration, as_json: bool) -> None:
    """Prints the outcome; leaves with exit 3 when the gate refused."""
    heldout = (calibration.result or {}).get("heldout") or {}
    data = {
        "calibration": str(calibration.pk), "name": calibration.name, "published": bool(calibration.published),
        "heldout": {key: heldout.get(key) for key in ("median", "p90", "decode_bias", "scored")},
        "kv_tokens": calibration.kv_tokens, "reason": calibration.reason,
    }  # fmt: skip
    if as_json:
        cli.print_json(command, data)
    else:
        command.stdout.write(f"{calibration.name} ({calibration.pk})\n{calibration.reason}")
    cli.leave(cli.OK if calibration.published else cli.REFUSED)
