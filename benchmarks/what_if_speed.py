"""How much processor time does one move of a what-if take, inside the web server?

    python -m benchmarks.what_if_speed --steps STEPS.csv.gz [--requests 20000] [--repeats 7]

Fits the step samples, makes up chat and code traffic, and opens a plan's candidate on them: two and eight replicas
alike, and one prefill with three decode replicas. Each is asked once to load the compiled simulator, then `repeats`
times at rates that differ, so that nothing can be kept. CPU-seconds of the process (`time.process_time`), the median:
simulation, pooled percentiles, curves and the sketch. Beyond 50,000 requests a window is simulated; the last rows show
what that costs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from calibration.architecture import load_architecture
from calibration.capacity import KVCapacity
from calibration.sources.choosing import choose_points
from calibration.sources.step_csv import read_step_csv
from calibration.steptime import StepTimeArrays, fit
from planner.search import Candidate, Conditions, Link, SearchSpace, parse_objectives
from planner.search.combinations import Pools
from planner.search.engines import make
from planner.search.neighbours import neighbours
from planner.search.what_if import Reopened, ask, reopen
from planner.traffic import Traffic, synthesise
from planner.what_if_sketch import sketches

KV_TOKENS = 41_408
GOALS = parse_objectives(["ttft:p95:2.0", "itl:p99:0.1"])
SPACE = SearchSpace((512, 1024, 2048), (0,), (64, 128, 256))


def main() -> None:
    options = _options()
    with Path(options.steps).open("rb") as file:
        step_time = fit(choose_points(read_step_csv(file), 80, 0), seed=0).arrays()
    knobs = make("vllm", 2048, 256, KV_TOKENS, block_tokens=16)
    apart = Candidate(knobs, 4, Pools(knobs, knobs, "pull"), 1)
    figures = {}
    for name, candidate, requests in (
        ("chat, 2 replicas", Candidate(knobs, 2), options.requests),
        ("chat, 8 replicas", Candidate(knobs, 8), options.requests),
        ("code, 4 replicas", Candidate(knobs, 4), options.requests),
        ("chat, 1 : 3", apart, options.requests),
        ("chat, 4 replicas, 200,000 requests", Candidate(knobs, 4), 200_000),
    ):
        traffic = synthesise(name.partition(",")[0], requests=requests, seed=1)
        subject = _opened(traffic, step_time, candidate)
        figures[name] = _measured(subject, options.repeats)
        print(f"{name:36} {figures[name]}")
    print(json.dumps(figures))


def _opened(traffic: Traffic, step_time: StepTimeArrays, candidate: Candidate) -> Reopened:
    return reopen(
        traffic,
        step_time,
        KVCapacity.constant(KV_TOKENS),
        load_architecture("llama-3.1-8b"),
        GOALS,
        SPACE,
        Conditions(link=Link.entered(25.0)),
        candidate,
        max_model_len=8_192,
    )


def _measured(subject: Reopened, repeats: int) -> dict[str, float | int | str]:
    ask(subject, subject.start)
    taken = []
    for k in range(repeats):
        setting = replace(subject.start, rate_multiplier=1.0 + 0.01 * k)
        begun = time.process_time()
        found = ask(subject, setting)
        sketches(found.predictions, found.curves_s or {}, {})
        taken.append(time.process_time() - begun)
    begun, around = time.process_time(), 0
    for each in neighbours(subject, subject.start):
        ask(subject, each.setting)
        around += 1
    neighbours_s = time.process_time() - begun
    return {
        "requests": found.requests,
        "status": found.status,
        "cpu_s": round(statistics.median(taken), 3),
        "most_cpu_s": round(max(taken), 3),
        "neighbours": around,
        "neighbours_cpu_s": round(neighbours_s, 3),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", required=True)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
