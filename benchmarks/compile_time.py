"""How long does the simulator compile, and load what is compiled? CPU-seconds, with an empty cache and again with a
full one, kernel by kernel in one process each, as `planner.simulation.ready` does it at a worker's start.

    python -m benchmarks.compile_time

Importing numba and the kernel is apart. What every plan for vLLM needs comes first; parts that kernels share are
compiled once, by the first. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time


def measure() -> None:
    start = time.process_time()
    from planner.simulation import kernel, ready
    from planner.simulation.kernel import cluster

    took = {"import": time.process_time() - start}
    for name, warm_up, knobs in (
        ("vLLM, one replica", kernel.warm_up, ready.IN_ORDER),
        ("vLLM, cluster", cluster.warm_up, ready.IN_ORDER),
        ("TensorRT-LLM and policies, one replica", kernel.warm_up, ready.APART),
        ("SGLang, one replica", kernel.warm_up, ready.PREFILL_FIRST),
        ("TensorRT-LLM, cluster", cluster.warm_up, ready.APART),
        ("SGLang, cluster", cluster.warm_up, ready.PREFILL_FIRST),
    ):
        start = time.process_time()
        warm_up(knobs)
        took[name] = time.process_time() - start
    print(json.dumps(took))


def main() -> None:
    if "--measure" in sys.argv:
        measure()
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for state in ("compiled", "loaded"):
            told = subprocess.check_output(
                [sys.executable, "-m", "benchmarks.compile_time", "--measure"],
                env=os.environ | {"NUMBA_CACHE_DIR": folder}, text=True,
            )  # fmt: skip
            took = results[state] = json.loads(told)
            so_far = 0.0
            for name, seconds in took.items():
                so_far += seconds if name != "import" else 0.0
                print(f"{state}: {name} {seconds:.2f} CPU-s, {so_far:.2f} so far", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
