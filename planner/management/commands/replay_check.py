"""manage.py replay_check DIR [--samples 80|all]: a real server's run, predicted from step times measured apart."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from calibration.steptime import FitError
from config import commandline as cli
from planner.simulation.recorded_run import RecordedRun, RecordedRunError, read_recorded_run
from planner.simulation.replay import (
    ASYNC,
    BARS,
    BOTH,
    METRICS,
    STATISTICS,
    SYNC,
    ReplayCheck,
    Variant,
    replay_check,
)

MOST_GAP_MS = 1000.0


class Command(BaseCommand):
    help = "Predict a recorded run from step times chosen by shape; exit 1 where it is further off than --within."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "folder", help="meta.json, requests.jsonl, steps.csv.gz and, if there is one, prefix_blocks.jsonl"
        )
        parser.add_argument(
            "--within",
            help="largest errors, e.g. ttft=0.05,tpot=0.04,e2e=0.04 (the default; from all samples 0.02 each)",
        )
        parser.add_argument("--samples", default="80", help="how many step times to fit, or all (default 80)")
        parser.add_argument("--seeds", type=int, default=5, help="choices of step times; the worst counts")
        parser.add_argument(
            "--host-gap-ms", type=float, default=0.0, help="host time a step; decides (default 0)"
        )
        parser.add_argument(
            "--scheduling",
            choices=[SYNC, ASYNC, BOTH],
            help="which decides; both are printed (default: as recorded, else both)",
        )
        cli.add_json_argument(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        points = _samples(options["samples"])
        within = _within(options["within"]) if options["within"] else None
        if not 0.0 <= options["host_gap_ms"] <= MOST_GAP_MS:
            raise _bad("--host-gap-ms", f"must be from 0 to {MOST_GAP_MS:g}")
        if not 1 <= options["seeds"] <= 100:
            raise _bad("--seeds", "must be from 1 to 100")
        try:
            run = read_recorded_run(options["folder"])
            check = replay_check(
                run,
                points=points,
                seeds=options["seeds"],
                within=within,
                host_gap_s=options["host_gap_ms"] / 1000.0,
                scheduling=options["scheduling"],
            )
        except RecordedRunError as error:
            folder = options["folder"].rstrip("/")
            problems = [text if text.startswith(folder) else f"{folder}/{text}" for text in error.problems]
            raise cli.BadInput(
                "\n".join([*problems, "A recorded run's files: docs/commands.md, Recordings."]),
                [{"field": "folder", "message": text} for text in problems],
            ) from error
        except FitError as error:
            raise _bad("--samples", str(error)) from error
        self._show(run, check)
        if options["json"]:
            cli.print_json(self, {"run": run.name, **check.to_dict()})
        cli.leave(cli.BELOW if check.failures else cli.OK)

    def _show(self, run: RecordedRun, check: ReplayCheck) -> None:
        knobs = run.knobs
        shared = "without hashes" if run.prefix is None else "with the prompts' hashes"
        cache = f"prefix cache {shared}" if knobs.prefix_caching else "no prefix cache"
        self.stdout.write(
            f"{run.name}: vLLM {run.version}, {len(run.arrival_s)} requests, budget {knobs.max_num_batched_tokens},"
            f" {knobs.max_num_seqs} seats, {knobs.num_blocks} blocks of {knobs.block_size} tokens, {cache}"
        )
        self.stdout.write(
            f"fitted to {check.fitted:,} of {check.candidates:,} step times near what the pool holds"
            f" ({check.table:,} in the table), {check.seeds} choice{'s' * (check.seeds > 1)} by shape"
        )
        self.stdout.write(f"{'':28}{'':6}" + "".join(f"{name:>19}" for name in STATISTICS))
        for comparison in check.variants[0].comparisons:
            if not comparison.measured:
                self.stdout.write(f"{'':28}{comparison.metric:6}of nothing: no request has two outputs")
                continue
            figures = "".join(f"{_seconds(comparison.metric, value):>19}" for value in comparison.measured_s)
            self.stdout.write(f"{'measured':28}{comparison.metric:6}{figures}")
        for variant in check.variants:
            self._show_variant(variant)
        for failure in check.failures:
            self.stdout.write(f"outside: {failure}")
        if not check.failures:
            bars = ", ".join(f"{metric} {check.within[metric]:.2%}" for metric in METRICS)
            self.stdout.write(f"within {bars}: {', '.join(v.label for v in check.variants if v.decides)}")

    def _show_variant(self, variant: Variant) -> None:
        for row, comparison in enumerate(variant.comparisons):
            label = (variant.label, "  decides" if variant.decides else "", "")[row]
            if not comparison.measured:
                continue
            figures = "".join(
                f"{_seconds(comparison.metric, value):>11}{error:>+8.2%}"
                for value, error in zip(comparison.predicted_s, comparison.errors, strict=True)
            )
            self.stdout.write(f"{label:28}{comparison.metric:6}{figures}")
        notes = f"{variant.preemptions} preemptions, {variant.hit_rate:.1%} of prompt tokens hit"
        if variant.uncovered_share > 0.005:
            notes += f", {variant.uncovered_share:.1%} of busy time in steps beyond the samples"
        self.stdout.write(f"{'':28}{notes}")


def _seconds(metric: str, value: float) -> str:
    return f"{value * 1000:.2f} ms" if metric == "tpot" else f"{value:.2f} s"


def _samples(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9) or not 6 <= int(text) <= 100_000:
        raise _bad("--samples", "must be all, or a whole number from 6 to 100,000")
    return int(text)


def _within(text: str) -> dict[str, float]:
    """The bars, those of BARS where a metric is not named."""
    bars = dict(BARS)
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            bar = float(value)
        except ValueError:
            bar = -1.0
        if name not in METRICS or not 0.0 < bar < 10.0:
            raise _bad("--within", f"must look like ttft=0.05,tpot=0.04,e2e=0.04, not {part!r:.40}")
        bars[name] = bar
    return bars


def _bad(option: str, message: str) -> cli.BadInput:
    return cli.BadInput(f"{option} {message}", [{"field": option, "message": message}])
