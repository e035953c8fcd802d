"""Does a step cost more the first time that its sizes come up? In a replay nearly every mixed step is such a step, in a
calibration each is repeated: where the answer is yes, plans are optimistic by it.

    python -m benchmarks.fresh_steps [--steps 40] [--seed 0]

Random mixed steps of the demo model on one core: each once as it comes, then five times more, in an engine process of
its own. Prints what the first took relative to the median of the others, at p10, p50 and p90 of the steps, and their
mean.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from calibration.architecture import PRESETS
from calibration.engine.client import EngineClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    ratios = []
    with EngineClient(PRESETS["demo"], kv_tokens=65_536, max_positions=2_048) as engine:
        for _ in range(10):
            engine.measure([500] * 8, [(400, 0, True)], int(rng.integers(1 << 60)))
        for _ in range(options.steps):
            contexts = rng.integers(60, 600, rng.integers(4, 15)).tolist()
            chunks = [(int(tokens), 0, True) for tokens in rng.integers(30, 160, rng.integers(1, 4))]
            seeds = rng.integers(1 << 60, size=6).tolist()
            first_s, *others_s = (engine.measure(contexts, chunks, seed).seconds for seed in seeds)
            ratios.append(first_s / float(np.median(others_s)))
    told = [round(float(p), 3) for p in np.percentile(ratios, [10, 50, 90])]
    print(
        json.dumps({"steps": len(ratios), "first_to_later": told, "mean": round(float(np.mean(ratios)), 3)})
    )


if __name__ == "__main__":
    main()
