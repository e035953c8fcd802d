"""How much processor time does a plan take, and do two threads halve the wait?

    python -m benchmarks.plan_speed --steps STEPS.csv.gz --traffic TRACE.csv.gz [--kv-tokens N] [--objective ...]

Fits the step samples, warms the compiled simulator up, then plans on one and on two threads. A candidate is one
combination of knobs on one number of replicas, judged against the whole trace. CPU-seconds are those of the whole
process; the wall-clock ratio means something only on a machine that is otherwise idle. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from calibration.architecture import load_architecture
from calibration.sources.choosing import choose_points
from calibration.sources.step_csv import read_step_csv
from calibration.steptime import fit
from planner.search import PlanResult, parse_objectives, plan
from planner.simulation.kernel import warm_up
from planner.traffic import read_traffic


def main() -> None:
    options = _options()
    with Path(options.steps).open("rb") as file:
        samples = read_step_csv(file)
    model = fit(choose_points(samples, options.points, options.seed), seed=options.seed)
    traffic = read_traffic(options.traffic)
    objectives = parse_objectives(options.objective or ["ttft:p95:2.0", "itl:p99:0.1"])
    warm_up()
    figures: dict[str, object] = {"requests": traffic.requests}
    answers: list[PlanResult] = []
    for threads in (1, 2):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        result = plan(
            traffic,
            model,
            options.kv_tokens,
            load_architecture(options.model),
            objectives,
            max_replicas=options.max_replicas,
            threads=threads,
            seed=options.seed,
        )
        figures[f"threads_{threads}"] = {
            "cpu_s": round(time.process_time() - cpu_s, 2),
            "wall_s": round(time.perf_counter() - wall_s, 2),
        }
        answers.append(result)
    figures["combinations"] = len(answers[0].candidates)
    figures["candidates"] = sum(len(candidate.tried) for candidate in answers[0].candidates)
    figures["identical"] = answers[0].to_dict() == answers[1].to_dict()
    print(answers[0].verdict.sentence)
    print(json.dumps(figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", required=True)
    parser.add_argument("--traffic", required=True)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--kv-tokens", type=int, default=41_408)
    parser.add_argument("--points", type=int, default=80)
    parser.add_argument("--objective", action="append")
    parser.add_argument("--max-replicas", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
