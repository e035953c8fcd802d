"""Some points of a calibration fall into slow minutes of their host: how much of a plan's steps is then believed of
neither model, and how far off is what is predicted?

    python -m benchmarks.spoilt_points [--runs 20] [--share 0.12]

The demo's points under laws of the fitted family (benchmarks/synthetic_truth.py); every median is off by 3 %, a share
of them slower by 5 to 30 %. Scored on random steps as a chat makes them: one to three prompts, alone or beside
decodes. Prints the share not covered (mean, p90 and worst of the runs) and the median error of law, check model and
prediction, in per cent. About 1 CPU-second a run.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.synthetic_truth import REGION, family
from calibration.experiment import points
from calibration.steptime import Chunk, StepSample, StepShape, features_of, fit
from calibration.steptime.law import seconds_and_slopes

SPREAD = 0.03
REPEATS = (0.98, 0.99, 1.0, 1.02, 1.04)  # about a median


def chat_steps(rng: np.random.Generator, count: int, *, decodes: bool) -> list[StepShape]:
    def step() -> StepShape:
        prompts = np.exp(rng.uniform(np.log(16), np.log(170), rng.integers(1, 4))).astype(int).tolist()
        contexts = rng.integers(60, 700, rng.integers(1, 13)).tolist() if decodes else []
        return StepShape(tuple(contexts), tuple(Chunk(tokens, 0) for tokens in prompts))

    return [step() for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.12)
    options = parser.parse_args()
    shapes = [point.shape for point in points(REGION, "cpu", 0) if point.role == "fit"]
    print(f"{len(shapes)} points, {options.share:.0%} of them slower by 5 to 30 %, {options.runs} runs")
    for name, decodes in (("prompts alone", False), ("beside decodes", True)):
        asked = chat_steps(np.random.default_rng(1), 300, decodes=decodes)
        features = features_of(asked)
        rows = []
        for run in range(options.runs):
            rng, law = np.random.default_rng([run, 2]), family(run)
            slowed = np.where(
                rng.random(len(shapes)) < options.share, rng.uniform(1.05, 1.3, len(shapes)), 1.0
            )
            medians = [law(s) for s in shapes] * slowed * np.exp(SPREAD * rng.standard_normal(len(shapes)))
            model = fit(
                [StepSample(s, tuple(m * r for r in REPEATS)) for s, m in zip(shapes, medians, strict=True)],
                bootstrap=2,
            )
            truth = np.array([law(s) for s in asked])
            own = seconds_and_slopes(model.theta, model.tokens, features)[0]
            check = model.check.predict_s(features, model.tokens)
            errors = [np.median(abs(found / truth - 1)) for found in (own, check, model.predict_s(features))]
            rows.append([1 - model.covered(features).mean(), *errors])
        share, own_e, check_e, error = 100 * np.array(rows).T
        print(
            f"{name}: not covered {share.mean():.1f} (p90 {np.percentile(share, 90):.1f}, worst {share.max():.1f}); "
            f"median error: law {own_e.mean():.1f}, check model {check_e.mean():.1f}, prediction {error.mean():.1f}"
        )


if __name__ == "__main__":
    main()
