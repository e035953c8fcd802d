"""What does the compiled simulator pay for the prefix cache and speculative decoding where both are off?

The kernel's sources are copied, twice as they are and once without every branch that asks for one of the two, all are
compiled, and the same workloads (`kernel_speed`) run on them in turn. CPU-seconds, compilation apart; ratios of
medians. What the two equal copies differ by is what cannot be told.

    python -m benchmarks.features_off [--runs 61]

With 15 runs, on two cores that others used as well: chat 1.04 (equal copies 0.94), preempting 1.03 (0.99), long outputs
1.02 (0.97). What is off costs at most a few per cent, less than two copies of the same code differ by here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ON = re.compile(r"(?:state\.knobs\[0\]|between\.knobs\[r\]|knobs)\.(?:caching|drafts) != 0")
OFF = re.compile(r"(?:state\.knobs\[0\]|between\.knobs\[r\]|knobs)\.(?:caching|drafts) == 0")
#: The last is the first over again: how far two processes of the same code differ.
COPIES = ("with", "without", "again")
WORKLOADS = ("chat", "preempting", "long outputs")


def serve() -> None:
    """In a copy: run the workload that each line names, answer its CPU-seconds."""
    from benchmarks.kernel_speed import chat, long_outputs, step_time
    from planner.simulation import kernel
    from planner.simulation.knobs import VllmKnobs

    model, load = step_time(), chat(100_000)
    runs = {
        "chat": (load, VllmKnobs(8192, 256, num_blocks=30_000)),
        "preempting": (load, VllmKnobs(8192, 256, num_blocks=2_300)),
        "long outputs": (long_outputs(20_000), VllmKnobs(8192, 256, num_blocks=200_000)),
    }
    for requests, knobs in runs.values():
        kernel.simulate(*requests, None, knobs, model)
    for line in sys.stdin:
        requests, knobs = runs[line.strip()]
        start = time.process_time()
        kernel.simulate(*requests, None, knobs, model)
        print(time.process_time() - start, flush=True)


def copy(folder: Path, *, stripped: bool) -> subprocess.Popen[str]:
    for package in ("benchmarks", "calibration", "planner"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "static")
        )
    changed = 0
    for source in (folder / "planner" / "simulation" / "kernel").glob("*.py") if stripped else ():
        text, on = ON.subn("False", source.read_text())
        text, off = OFF.subn("True", text)
        source.write_text(text)
        changed += on + off
    assert changed or not stripped, "no branch was found"
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.features_off", "--serve"], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"NUMBA_CACHE_DIR": str(folder / "numba")},
    )  # fmt: skip


def seconds(process: subprocess.Popen[str], workload: str) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(workload + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=61)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        copies = {name: copy(Path(folder) / name, stripped=name == "without") for name in COPIES}
        for workload in WORKLOADS:
            took: dict[str, list[float]] = {name: [] for name in COPIES}
            for number in range(arguments.runs):
                for turn in range(len(COPIES)):
                    name = COPIES[(number + turn) % len(COPIES)]
                    took[name].append(seconds(copies[name], workload))
            medians = {name: statistics.median(values) for name, values in took.items()}
            ratio, noise = medians["with"] / medians["without"], medians["with"] / medians["again"]
            print(
                f"{workload}: {medians['with'] * 1e3:.1f} ms with the branches, {medians['without'] * 1e3:.1f} ms"
                f" without: ratio {ratio:.3f}; of two copies with them {noise:.3f}",
                flush=True,
            )
            results[workload] = {"ratio": ratio, "noise": noise}
        for process in copies.values():
            process.communicate()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
