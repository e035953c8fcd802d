"""Is the compiled cluster the plain one, bit for bit? The long run of what the tests do on a few hundred seeds.

Random clusters of every topology, hand-off, router, link and limit, replicas lost among them, with the named engines
in the pools, prefixes cached or not: every array and number of the outcome, of every replica, link and step record is
compared. Stops at the first difference, naming the seed. Each pair of assemblers is compiled when it first occurs.

    python -m benchmarks.cluster_agreement [--seeds 20000] [--first 0] [--requests 25] [--engine vllm sglang ...]
        [--no-cache]
"""

from __future__ import annotations

import argparse
import json
import time

from planner.simulation.cluster import reference
from planner.simulation.kernel import cluster
from tests.planner.simulation.cluster_workloads import assert_same_cluster, random_cluster
from tests.planner.simulation.workloads import ENGINES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--requests", type=int, default=25, help="most of one workload")
    parser.add_argument("--engine", nargs="*", choices=ENGINES, default=["vllm"])
    parser.add_argument("--no-cache", action="store_true", help="without prefix caches and prefix pools")
    arguments = parser.parse_args()
    start = time.process_time()
    names = ("clusters", "steps", "handed_over", "lost_kv", "preemptions", "refused", "hits", "pool_hits")
    totals = dict.fromkeys(names, 0)
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        engines, cached = tuple(arguments.engine), not arguments.no_cache
        positional, named = random_cluster(seed, arguments.requests, engines, cached=cached)
        record = seed % 3 == 0
        expected = reference.simulate(*positional, **named, record_steps=record)
        try:
            assert_same_cluster(expected, cluster.simulate(*positional, **named, record_steps=record))
        except AssertionError as error:
            raise SystemExit(f"seed {seed}, {positional[4]}: {error}") from error
        totals["clusters"] += 1
        totals["steps"] += expected.requests.steps
        totals["handed_over"] += int(expected.handed_over.sum())
        totals["lost_kv"] += int(expected.lost_kv.sum())
        totals["preemptions"] += int(expected.requests.preemptions.sum())
        totals["refused"] += len(expected.requests.rejected)
        totals["hits"] += int(expected.requests.hit_tokens.sum())
        totals["pool_hits"] += int(expected.pool_hit_tokens.sum())
    print(f"all equal; {time.process_time() - start:.0f} CPU-s, compilation included")
    print(json.dumps(totals))


if __name__ == "__main__":
    main()
