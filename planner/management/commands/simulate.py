"""manage.py simulate --calibration C --traffic T --engine E ...: one configuration on one traffic, told in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from calibration import services as calibration_services
from calibration import strict_json
from calibration.architecture import Architecture
from calibration.models import Calibration
from config import commandline as cli
from planner.commands import (
    CALIBRATION_HELP,
    TRAFFIC_HELP,
    calibration_of,
    traffic_arrays,
    traffic_meaning,
    unused_reading,
)
from planner.search.evaluate import MAX_UNCOVERED_SHARE
from planner.simulate_checks import cannot_write, check, check_requests, option_of, outputs
from planner.simulate_deployment import NEEDS_CACHE, WAYS, classes_of, deployment_of, knobs_of
from planner.simulate_options import (
    ENGINES,
    SimulateError,
    read_class_objectives,
    read_objectives,
    read_window,
)
from planner.simulate_run import Simulation, told
from planner.simulate_text import lines_of
from planner.simulation import ready
from planner.simulation.cluster.deployment import ROUND_ROBIN, ROUTERS, QueueLimit
from planner.simulation.request_rows import columns_of, csv_lines
from planner.traffic import Traffic
from planner.work import COMPILING


class Command(BaseCommand):
    help = "Simulate one engine and topology on a traffic; exit 1 when an objective does not hold."
    requires_system_checks = ()  # they load the API and all pages, for seconds, before a mistake can be told

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--calibration", required=True, help=CALIBRATION_HELP)
        parser.add_argument("--traffic", required=True, help=TRAFFIC_HELP)
        parser.add_argument("--engine", choices=sorted(ENGINES), default="vllm",
                            help="prefill_first: vLLM V0; with a hyphen: generic policies (default vllm)")  # fmt: skip
        parser.add_argument("--knobs", metavar="NAME=VALUE,...", help="by the engine's own names")
        parser.add_argument("--prefill-knobs", metavar="NAME=VALUE,...", help="of that pool, before --knobs")
        parser.add_argument("--decode-knobs", metavar="NAME=VALUE,...")
        _add_topology(parser.add_argument_group("topology"))
        _add_load(parser.add_argument_group("load"))
        _add_told(parser.add_argument_group("told"))
        cli.add_json_argument(parser)
        cli.add_owner_arguments(parser)

    @cli.failures_as_json
    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._handle(options)
        except SimulateError as error:
            raise cli.BadInput(
                f"{error.option} {error.message}", [{"field": error.option, "message": error.message}]
            ) from error

    def _handle(self, options: dict[str, Any]) -> None:
        check(options)
        objectives = read_objectives(options["objective"])
        window = read_window(options["microscope"][0]) if options["microscope"] else None
        owner, project = cli.owner_and_project(options)
        calibration = calibration_of(options["calibration"], owner, project)
        if not calibration.published:
            state = calibration.reason or f"it is {calibration.status}"
            raise CommandError(f"not published: {state}", returncode=cli.REFUSED)
        traffic = _traffic(options, owner)
        check_requests(options, len(traffic.arrival_s))
        of_classes = read_class_objectives(options["class_objective"], traffic.class_names)
        simulation = _simulation(options, calibration, traffic)
        if window:
            simulation.check_window(window)
        _await_simulator(self.stderr.write, options["engine"])
        outcome = simulation.run()
        seen = simulation.look(window, outcome) if window else None
        summary, data = told(simulation, outcome, objectives, of_classes, options["series"] or 0)
        outside = simulation.outside(outcome) if summary.uncovered_share > MAX_UNCOVERED_SHARE else ""
        for line in lines_of(options["engine"], simulation, summary, outside):
            self.stdout.write(line)
        columns = columns_of(outcome, simulation.request_class, traffic.class_names)
        texts = {"--rows": lambda: csv_lines(columns)}
        if seen is not None:
            texts["--microscope"] = lambda: iter([strict_json.write(simulation.annotated(seen))])
        for option, path in outputs(options).items():
            _write(option, path, texts[option]())
        if options["json"]:
            cli.print_json(
                self,
                {"engine": options["engine"], "calibration": calibration.name, **data, "outside": outside},
            )
        cli.leave(cli.OK if summary.holds else cli.BELOW)


def _add_topology(group: Any) -> None:
    group.add_argument("--replicas", type=int, help="alike, behind a router (default 1)")
    group.add_argument("--prefill", type=int, metavar="P", help="replicas of a prefill pool, with --decode")
    group.add_argument("--decode", type=int, metavar="D", help="replicas of a decode pool")
    group.add_argument("--link-gb-per-s", type=float, metavar="X",
                       help="decimal GB/s of each host's card; default: the calibration's transfers")  # fmt: skip
    group.add_argument("--link-latency-s", type=float, help="before the first byte of a KV cache (0)")
    group.add_argument("--message-s", type=float, help="a request's way between the pools (0)")
    group.add_argument("--hand-off", choices=sorted(WAYS), help="default: as the engine does it")
    group.add_argument("--router", choices=ROUTERS, help=f"default {ROUND_ROBIN}")
    group.add_argument("--local-prefill-tokens", type=int, help="two pools: shorter prompts stay (0: none)")
    group.add_argument("--prefix-pool-gb-per-s", type=float, metavar="X",
                       help="replicas share KV blocks of prompts, fetched at decimal X GB/s in all")  # fmt: skip
    group.add_argument("--prefix-pool-latency-s", type=float, help="of each fetch (0)")
    group.add_argument("--prefix-pool-blocks", type=int, help="its size (default: it forgets nothing)")


def _add_load(group: Any) -> None:
    group.add_argument("--rate-multiplier", type=float, help="arrivals so much faster (1)")
    group.add_argument("--concurrency", type=int, help="closed loop of so many clients instead")
    group.add_argument("--think-ms", type=float, help="closed loop: between two requests (0)")
    group.add_argument("--warm-up", type=int, help="first requests that are not told of (0)")
    group.add_argument("--queue-limit", type=int, help="requests in a replica's queue; more are refused")
    group.add_argument("--ttft-limit-s", type=float, help="requests predicted to wait longer are refused")
    group.add_argument("--class-ttft-limit-s", action="append", default=[], metavar="CLASS=SECONDS")
    group.add_argument("--class-priority", action="append", default=[], metavar="CLASS=N",
                       help="lower goes first; others have 0")  # fmt: skip
    group.add_argument("--hit-share", type=float, help="of prompt tokens taken to be cached, 0 to 1")
    group.add_argument("--host-gap-s", type=float, help="added to every step (0)")
    group.add_argument("--host-gap-ms", type=float, help="the same in milliseconds")
    group.add_argument("--rate-per-s", type=float, help="for files without arrival times, and presets")
    group.add_argument("--requests", type=int, help="how many, for presets")
    group.add_argument("--max-model-len", type=int, help="leave out longer requests [tokens]")
    group.add_argument("--seed", type=int, help="of a preset, or of what a file leaves to chance (0)")


def _add_told(group: Any) -> None:
    group.add_argument("--objective", action="append", default=[], metavar="METRIC:pNN:SECONDS")
    group.add_argument("--class-objective", action="append", default=[], metavar="CLASS=METRIC:pNN:SECONDS")
    group.add_argument("--rows", metavar="FILE.csv", help="one row per request")
    group.add_argument("--microscope", nargs=2, metavar=("FROM:TO", "FILE.json"),
                       help="every step from second FROM to TO, or sFROM:TO by step numbers")  # fmt: skip
    group.add_argument("--series", type=int, metavar="BINS", help="time series in the JSON")


def _await_simulator(say: Callable[[str], Any], engine: str) -> None:
    """The first run after an installation compiles, and says so."""
    said: list[Any] = []

    def tell() -> None:
        if not said:
            said.append(say(f"{COMPILING} …"))

    ready.wait(tell, engine)


def _write(option: str, path: Path, lines: Iterable[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise cannot_write(option, path, error) from error


def _traffic(options: dict[str, Any], owner: Any) -> Traffic:
    """Nothing is stored of a traffic that is only simulated."""
    meant = traffic_meaning(options["traffic"], owner)
    if options["requests"] is not None and not meant.preset:
        raise SimulateError("--requests", "says how many requests a preset makes: this traffic has its own")
    unused = unused_reading(meant, options)
    if unused is not None:
        raise SimulateError(option_of(unused[0]), unused[1])
    return traffic_arrays(options["traffic"], owner, options)


def _simulation(options: dict[str, Any], calibration: Calibration, traffic: Traffic) -> Simulation:
    longest = int((traffic.prompt_tokens + traffic.output_tokens).max())
    capacity = calibration_services.kv_capacity(calibration)
    knobs = knobs_of(options, capacity.tokens, longest)
    if options["hit_share"] and not any(one.profile.caching for one in knobs):
        raise SimulateError("--hit-share", NEEDS_CACHE)
    step_time = calibration_services.step_time_model(calibration).arrays()
    architecture = Architecture.from_dict(calibration.architecture)
    deployment = deployment_of(
        options, knobs, step_time,
        float(architecture.kv_bytes_per_token(tensor_parallel=calibration.tensor_parallel)),
        tuple(calibration_services.facts_of(calibration).transfers), traffic,
    )  # fmt: skip
    limit = options["queue_limit"]
    return Simulation(
        traffic,
        knobs[1],
        step_time,
        deployment,
        host_gap_s=options["host_gap_s"] or (options["host_gap_ms"] or 0.0) / 1000.0,
        concurrency=options["concurrency"] or 0,
        think_s=(options["think_ms"] or 0.0) / 1000.0,
        rate_multiplier=1.0 if options["rate_multiplier"] is None else options["rate_multiplier"],
        warm_up_requests=options["warm_up"] or 0,
        queue_limit=QueueLimit(limit) if limit else None,
        assumed_hit_share=options["hit_share"] or 0.0,
        classes=classes_of(options, traffic, knobs),
        ttft_limit_s=options["ttft_limit_s"],
    )
