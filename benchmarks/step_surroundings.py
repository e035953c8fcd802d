"""Do a replay's steps take as long as the same steps in the surroundings in which a calibration times them?

    python -m benchmarks.step_surroundings CALIBRATION.json [--requests 100] [--seconds 200]

The steps that the simulated scheduler makes of a traffic at 80 % load are run by one engine process, forty at a time,
in each of these ways, in a fresh order of ways each time, so that slow minutes meet all of them:

    replay      one after the other, as a replay does
    calibrated  in random order, each behind a lead-in, as a calibration does
    paused      as a replay, after 5 ms of idleness each

Told of each: how much longer it took than `replay`, the mean over the windows of forty and its standard error; and by
kind of step. A calibration that leaves something out of what a server's steps meet shows here whatever the machine does
between one minute and another. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.document import CalibrationDocument, read_document
from calibration.engine.client import EngineClient
from calibration.experiment import Region, warm_up
from calibration.experiment.running import lead_in_of, run_step
from calibration.steptime import StepShape, StepTimeModel, step_seconds
from planner.simulation import reference
from planner.simulation.reference_requests import Row
from planner.verification import offline
from planner.verification.loop import shape_of
from planner.verification.rate import at_rate, held_per_s

WINDOW = 40
Floats = NDArray[np.float64]
Way = Callable[[EngineClient, Sequence[StepShape], int], Floats]


def steps_of(document: CalibrationDocument, path: str, requests: int) -> list[StepShape]:
    """What the scheduler makes of the traffic that `planner.verification.offline` serves."""
    assert document.model is not None
    options = offline.parser().parse_args([path, "--requests", str(requests)])
    arrays, knobs = StepTimeModel.from_dict(document.model).arrays(), offline.knobs_of(options, document)
    unpaced = offline.requests_of(options, document)
    held = held_per_s(unpaced, lambda many: offline.simulated(many, knobs, arrays))
    served = at_rate(unpaced, options.load * held)
    found: list[StepShape] = []

    def measure(rows: list[Row]) -> float:
        found.append(shape_of(rows))
        return step_seconds(arrays, *reference.features(rows))[0]

    reference.simulate(
        served.arrival_s, served.prompt_tokens, served.output_tokens, None, knobs, arrays, measure=measure
    )
    return found


def one(engine: EngineClient, shape: StepShape, seed: int, lead_in: Sequence[int] = ()) -> float:
    return run_step(engine, shape, seed, lead_in).seconds


def replayed(engine: EngineClient, window: Sequence[StepShape], seed: int) -> Floats:
    return np.array([one(engine, shape, seed + i) for i, shape in enumerate(window)])


def calibrated(engine: EngineClient, window: Sequence[StepShape], seed: int) -> Floats:
    seconds = np.zeros(len(window))
    for i in np.random.default_rng(seed).permutation(len(window)):
        seconds[i] = one(engine, window[i], seed + 2 * int(i), lead_in_of(window[i]))
    return seconds


def paused(engine: EngineClient, window: Sequence[StepShape], seed: int) -> Floats:
    seconds = []
    for i, shape in enumerate(window):
        time.sleep(0.005)
        seconds.append(one(engine, shape, seed + i))
    return np.array(seconds)


WAYS: dict[str, Way] = {"replay": replayed, "calibrated": calibrated, "paused": paused}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    document = read_document(options.calibration)
    assert document.envelope is not None
    steps = steps_of(document, str(options.calibration), options.requests)
    random = np.random.default_rng(options.seed)
    windows: list[int] = []
    took: dict[str, list[Floats]] = {name: [] for name in WAYS}
    until_s = time.monotonic() + options.seconds
    with EngineClient(
        document.architecture, device=document.device, dtype=str(document.environment.get("dtype", "auto")),
        kv_tokens=document.kv_tokens, max_positions=document.envelope.max_context_tokens + 1, seed=options.seed,
    ) as engine:  # fmt: skip
        for shape in warm_up(Region(document.envelope, document.kv_tokens)):
            one(engine, shape, options.seed)
        while time.monotonic() < until_s:
            windows.append(int(random.integers(max(1, len(steps) - WINDOW))))
            for name in random.permutation(list(WAYS)).tolist():
                window = steps[windows[-1] : windows[-1] + WINDOW]
                took[name].append(WAYS[name](engine, window, 10_000 * len(windows)))
    kinds = np.concatenate([[kind(shape) for shape in steps[at : at + WINDOW]] for at in windows])
    print(json.dumps({name: told(took[name], took["replay"], kinds) for name in WAYS if name != "replay"}))


def kind(shape: StepShape) -> str:
    return ("mixed" if shape.decode_contexts else "prefill") if shape.chunks else "decode"


def told(own: Sequence[Floats], replay: Sequence[Floats], kinds: NDArray[np.str_]) -> dict[str, float]:
    """Per cent longer than in a replay."""
    ratios = np.array([mine.sum() / other.sum() - 1.0 for mine, other in zip(own, replay, strict=True)])
    found = {"mean_pct": ratios.mean(), "error_pct": ratios.std(ddof=1) / np.sqrt(len(ratios))}
    mine, other = np.concatenate(own), np.concatenate(replay)
    for name in sorted(set(kinds.tolist())):
        found[f"{name}_pct"] = mine[kinds == name].sum() / other[kinds == name].sum() - 1.0
    return {name: round(100.0 * float(value), 2) for name, value in found.items()} | {"windows": len(own)}


if __name__ == "__main__":
    main()
