"""manage.py model CONFIG_OR_PRESET [--tensor-parallel N] [--kv-dtype T] --json: a model's parts, by counting."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration.architecture import UnsupportedArchitecture, load_architecture
from calibration.describe import KV_DTYPES, described
from config import commandline as cli

_MOST = {"tensor_parallel": 1024, "block_tokens": 4096}


class Command(BaseCommand):
    help = "Parameters, weight bytes and KV bytes per token of a preset or a config.json."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="a preset's name or the path of a config.json")
        parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks that share a model")
        parser.add_argument(
            "--kv-dtype", choices=sorted(KV_DTYPES), default="bf16", help="type of the KV cache"
        )
        parser.add_argument("--block-tokens", type=int, default=16, help="tokens of a block of the KV cache")
        cli.add_json_argument(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        for option, most in _MOST.items():
            if not 1 <= options[option] <= most:
                message = f"must be from 1 to {most}"
                errors = [{"field": option, "message": message}]
                raise cli.BadInput(f"--{option.replace('_', '-')} {message}", errors)
        try:
            architecture = load_architecture(options["model"])
        except UnsupportedArchitecture as error:
            errors = [{"field": error.field, "message": error.message}]
            raise cli.BadInput(str(error), errors) from error
        figures = described(
            architecture,
            tensor_parallel=options["tensor_parallel"],
            kv_dtype=options["kv_dtype"],
            block_tokens=options["block_tokens"],
        )
        if options["json"]:
            cli.print_json(self, figures)
            return
        remarks = figures.pop("remarks")
        for name, value in figures.items():
            if value in (None, ""):
                continue  # nothing of the kind in this model
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
            self.stdout.write(f"{name:32} {shown}")
        for remark in remarks:
            self.stdout.write(f"- {remark}")
