"""Is the compiled simulator the plain one, bit for bit? The long run of what the tests do on a few hundred seeds.

For every engine, random workloads with odd knobs, small pools and bursts: every array and number of the outcome and
of the step record is compared. Stops at the first difference, naming engine and seed.

    python -m benchmarks.simulator_agreement [--seeds 20000] [--first 0] [--requests 40] [--engine sglang ...]
"""

from __future__ import annotations

import argparse
import json
import time

from planner.simulation import kernel, reference
from tests.planner.simulation.workloads import ENGINES, assert_same, random_workload


def compare(engine: str, seeds: range, most_requests: int) -> dict[str, float]:
    start = time.process_time()
    steps = preemptions = 0
    for seed in seeds:
        arguments = random_workload(seed, most_requests, engine).arguments()
        record = seed % 3 == 0
        expected = reference.simulate(**arguments, record_steps=record)
        try:
            assert_same(expected, kernel.simulate(**arguments, record_steps=record))
        except AssertionError as error:
            raise SystemExit(f"{engine}, seed {seed}, {arguments['knobs']}: {error}") from error
        steps += expected.steps
        preemptions += int(expected.preemptions.sum())
    seconds = time.process_time() - start
    print(
        f"{engine}: {len(seeds):,} workloads, {steps:,} steps, {preemptions:,} preemptions, {seconds:.0f} CPU-s"
    )
    return {"workloads": len(seeds), "steps": steps, "preemptions": preemptions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--requests", type=int, default=40, help="most of one workload")
    parser.add_argument("--engine", nargs="*", choices=ENGINES, default=list(ENGINES))
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    results = {engine: compare(engine, seeds, arguments.requests) for engine in arguments.engine}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
