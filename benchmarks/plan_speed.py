"""How much processor time does a plan take, and do two threads halve the wait?

    python -m benchmarks.plan_speed --steps STEPS.csv.gz --traffic TRACE.csv.gz [--link-gb-per-s 25] [--headroom 0.2]

Fits the step samples, then plans once to load the compiled simulators (the policies and the cluster too), and then on
one and on two threads. A candidate is one combination of knobs on one number of replicas, or on one split of them,
judged against the whole trace; finalists with all their draws, policies, sensitivities and loads are in the time.
CPU-seconds are those of the whole process; the wall-clock ratio means something only on a machine that is otherwise
idle. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.architecture import Architecture, load_architecture
from calibration.sources.choosing import choose_points
from calibration.sources.step_csv import read_step_csv
from calibration.steptime import StepTimeModel, fit
from planner.search import Conditions, Link, Objective, PlanResult, parse_objectives, plan
from planner.simulation.kernel import warm_up
from planner.traffic import Traffic, read_traffic


@dataclass(frozen=True, slots=True)
class Asked:
    """The question, fitted and read."""

    model: StepTimeModel
    traffic: Traffic
    architecture: Architecture
    objectives: tuple[Objective, ...]
    conditions: Conditions


def question_of(options: argparse.Namespace) -> Asked:
    with Path(options.steps).open("rb") as file:
        samples = read_step_csv(file)
    link = Link.entered(options.link_gb_per_s, 0.001) if options.link_gb_per_s else None
    return Asked(
        fit(choose_points(samples, options.points, options.seed), seed=options.seed),
        read_traffic(options.traffic),
        load_architecture(options.model),
        parse_objectives(options.objective or ["ttft:p95:2.0", "itl:p99:0.1"]),
        Conditions(link=link, headroom=options.headroom),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_question(parser)
    options = parser.parse_args()
    asked = question_of(options)
    warm_up()
    figures: dict[str, Any] = {"requests": asked.traffic.requests}
    answers: list[PlanResult] = []
    for threads in (0, 1, 2):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        result = plan(
            asked.traffic,
            asked.model,
            options.kv_tokens,
            asked.architecture,
            asked.objectives,
            max_replicas=options.max_replicas,
            threads=max(1, threads),
            seed=options.seed,
            conditions=asked.conditions,
        )
        if not threads:
            continue
        figures[f"threads_{threads}"] = {
            "cpu_s": round(time.process_time() - cpu_s, 2),
            "wall_s": round(time.perf_counter() - wall_s, 2),
        }
        answers.append(result)
    figures["combinations"] = len(answers[0].candidates)
    figures["candidates"] = sum(len(candidate.tried) for candidate in answers[0].candidates)
    figures["cpu_s_per_1000_candidates"] = round(
        1000 * figures["threads_1"]["cpu_s"] / figures["candidates"], 2
    )
    figures["identical"] = answers[0].to_dict() == answers[1].to_dict()
    print(answers[0].verdict.sentence)
    print(json.dumps(figures))


def add_question(parser: argparse.ArgumentParser, *, traffic: bool = True) -> None:
    """`traffic`: is it read from a file?"""
    parser.add_argument("--steps", required=True)
    if traffic:
        parser.add_argument("--traffic", required=True)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--kv-tokens", type=int, default=41_408)
    parser.add_argument("--points", type=int, default=80)
    parser.add_argument("--objective", action="append")
    parser.add_argument("--max-replicas", type=int, default=8)
    parser.add_argument("--link-gb-per-s", type=float)
    parser.add_argument("--headroom", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)


if __name__ == "__main__":
    main()
