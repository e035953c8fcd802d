"""manage.py calibrate --model M [--device cpu] [--out FILE] --json: measure here and now, without a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from calibration import jobs, services, work
from calibration.architecture import PRESETS, no_model
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
        parser.add_argument(
            "--model", required=True, help=f"the path of a config.json, or a preset: {', '.join(PRESETS)}"
        )
        parser.add_argument("--device", default="cpu", help="cpu (the default), cuda:0, ...")
        parser.add_argument("--max-batch", type=int, default=16, help="largest decode batch [sequences]")
        parser.add_argument(
            "--max-context-tokens", type=int, default=1024, help="longest prompt and output together [tokens]"
        )
        parser.add_argument(
            "--max-step-tokens", type=int, default=512, help="largest token budget to plan with [tokens]"
        )
        parser.add_argument("--kv-tokens", type=int, help="KV pool [tokens]; default: from free memory")
        parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs that share the model")
        parser.add_argument(
            "--dtype", default="auto", help="auto, bfloat16, float16, float32, float8 (8-bit weights)"
        )
        parser.add_argument("--mixed-mode", default="unified", help="of a GPU's attention: unified or split")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument(
            "--out", help="write the calibration to this file, which can be imported elsewhere"
        )
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        owner, project = cli.owner_and_project(options)
        model, config = model_of(options["model"])
        form = CalibrateForm(
            {**{key: options[key] for key in ("device", "max_batch", "max_context_tokens", "max_step_tokens",
                                              "kv_tokens", "seed", "tensor_parallel", "dtype", "mixed_mode")},
             **model},
            cli.uploads(**config) if config else None,
        )  # fmt: skip
        cli.refuse_invalid(form)
        calibration = services.create_calibration(project, owner, form.request())
        run_here(calibration, work.measure)
        if options["out"]:
            try:
                Path(options["out"]).write_bytes(write_document(services.document_of(calibration)))
            except OSError as error:
                raise CommandError(f"{options['out']}: {error.strerror}", returncode=cli.BAD_INPUT) from error
        report_calibration(self, calibration, options["json"])


def model_of(word: str) -> tuple[dict[str, str], dict[str, str]]:
    """What `--model` says, as a form takes it: its data, and the path of its file. A preset, or a config.json (a folder
    means the one in it). BadInput with the known models for a word that is neither."""
    if word.strip().lower() in PRESETS:
        return {"model": word.strip().lower()}, {}
    path = Path(word)
    try:
        if path.is_dir():
            path = path / "config.json"
        there = path.exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL
        there = False
    if not there:
        raise cli.BadInput(f"--model {no_model(word)}", [{"field": "model", "message": no_model(word)}])
    return {"model": CUSTOM}, {"config_file": str(path)}


def run_here(calibration: Calibration, does: Callable[[Calibration, jobs.JobRun], None]) -> None:
    """Does the job in this process, without a queue, and tells on standard error how far it is; the row is then as it
    ended. Leaves with exit 1 where it is not done."""
    with cli.telling() as teller:
        status = jobs.run(Calibration, str(calibration.pk), does, teller)
    calibration.refresh_from_db()
    if status != Calibration.DONE:
        raise CommandError(f"{status}: {calibration.error or calibration.message}", returncode=cli.BELOW)


def report_calibration(command: BaseCommand, calibration: Calibration, as_json: bool) -> None:
    """Prints the outcome; leaves with exit 3 when the gate refused."""
    heldout = (calibration.result or {}).get("heldout") or {}
    data = {
        "calibration": str(calibration.pk), "name": calibration.name, "published": bool(calibration.published),
        "heldout": {key: heldout.get(key) for key in ("median", "p90", "decode_bias", "scored")},
        "kv_tokens": calibration.kv_tokens, "reason": calibration.reason,
        "remarks": list(calibration.remarks),
    }  # fmt: skip
    if as_json:
        cli.print_json(command, data)
    else:
        lines = [f"{calibration.name} ({calibration.pk})", calibration.reason, *calibration.remarks]
        command.stdout.write("\n".join(lines))
    cli.leave(cli.OK if calibration.published else cli.REFUSED)
