"""What does a plan over two kinds of hardware with a link cost, stage by stage, and was its estimate true?

    python -m benchmarks.plan_two_kinds --steps STEPS.csv.gz [--requests 20000] [--rate 24] [--faster 2]
        [--objective ttft:p95:0.5 --objective itl:p99:0.012] [--prices 1 1.8] [--max-replicas 8] [--link-gb-per-s 25]

Traffic of preset chat; the second kind is `--faster` times as fast at every step, with a KV pool of --second-kv-tokens.
Told, from one thread: processor seconds and candidates by stage, how many candidates of two pools were rejected by a
bound, abandoned near the trace's beginning, or simulated whole, and every few seconds what was said to be left beside
what there was (processor seconds). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.plan_speed import add_question
from calibration.architecture import load_architecture
from calibration.capacity import KVCapacity
from calibration.sources.choosing import choose_points
from calibration.sources.step_csv import read_step_csv
from calibration.steptime import fit
from planner.pace import Pace
from planner.search import Conditions, Link, PlanResult, Prepared, parse_objectives, prepare, search
from planner.search.crew import in_threads
from planner.search.hardware import Hardware
from planner.search.steps import CLIMBS, FINALISTS, POOLS, Standing
from planner.simulation import ready
from planner.traffic import synthesise

TOLD_EVERY_S = 3.0
HOW = {
    "bound": re.compile("at least .*(takes?|have)|takes at least|as short as can be"),
    "abandoned": re.compile("in all$"),
}


def main() -> None:
    options = _options()
    prepared = _prepared(options)
    ready.wait(lambda: None)
    search(
        _prepared(options, requests=600), in_threads(_prepared(options, requests=600).hand.do, 1)
    )  # loads kernels
    pace, began_s = Pace(time.process_time), time.process_time()
    told: list[tuple[float, float, bool]] = []
    stands: list[Standing] = []

    def standing(now: Standing) -> None:
        stands[:] = [now]
        left, at_s = pace.left(now), time.process_time() - began_s
        if left.left_s is not None and (not told or at_s - told[-1][0] >= TOLD_EVERY_S):
            told.append((at_s, left.left_s, left.at_most))

    result = search(prepared, in_threads(prepared.hand.do, 1), on_standing=standing)
    cpu_s = time.process_time() - began_s
    for at_s, left_s, at_most in told:
        print(
            f"after {at_s:.0f} s: {'at most' if at_most else 'about'} {left_s:.0f} s left; it was {cpu_s - at_s:.0f} s"
        )
    print(result.verdict.sentence)
    print(json.dumps(_figures(result, stands[0], cpu_s, len(prepared.hand.pairs))))


def _figures(result: PlanResult, end: Standing, cpu_s: float, pairs: int) -> dict[str, Any]:
    stages = {"replicas_alike": CLIMBS, "two_pools": POOLS, "finalists": FINALISTS}
    return {
        "cpu_s": round(cpu_s, 1),
        "pairs": pairs,
        **{
            name: {"candidates": end.worked[s], "cpu_s": round(end.cpu_s[s], 1)} for name, s in stages.items()
        },
        "of_two_pools": dict(Counter(_how(t.reason) for c in result.candidates if c.pools for t in c.tried)),
    }


def _how(reason: str) -> str:
    return next((how for how, words in HOW.items() if words.search(reason)), "whole")


def _prepared(options: argparse.Namespace, requests: int | None = None) -> Prepared:
    with Path(options.steps).open("rb") as file:
        samples = choose_points(read_step_csv(file), options.points, options.seed)
    faster = [replace(s, seconds=tuple(x / options.faster for x in s.seconds)) for s in samples]
    first, second = options.prices
    return prepare(
        synthesise("chat", requests=requests or options.requests, rate_per_s=options.rate, seed=options.seed),
        fit(samples, seed=options.seed),
        options.kv_tokens,
        load_architecture(options.model),
        parse_objectives(options.objective or ["ttft:p95:0.5", "itl:p99:0.012"]),
        conditions=Conditions(
            link=Link.entered(options.link_gb_per_s or 25.0, 0.001), headroom=options.headroom,
            price_per_gpu_hour=first, second_price_per_gpu_hour=second,
        ),
        max_replicas=options.max_replicas,
        seed=options.seed,
        device="A",
        second=Hardware("B", fit(faster, seed=options.seed), KVCapacity.constant(options.second_kv_tokens)),
        refits=40 if requests is None else 2,
    )  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_question(parser, traffic=False)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=24.0)
    parser.add_argument("--faster", type=float, default=2.0)
    parser.add_argument("--second-kv-tokens", type=int, default=300_000)
    parser.add_argument("--prices", type=float, nargs=2, default=[1.0, 1.8])
    parser.set_defaults(headroom=0.2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
