"""A device whose steps take what a law says, and requests to serve on it."""

from __future__ import annotations

import numpy as np

from calibration.engine.interface import StepTiming
from calibration.steptime import StepShape, linear_model, step_seconds
from calibration.steptime.shapes import Chunk
from planner.search.requests import Requests
from planner.simulation.knobs import VllmKnobs
from planner.verification.pool_steps import PoolSteps

LAW = linear_model(4e-3, token_s=2e-4, decode_context_s=1e-6)
STEPS = PoolSteps.alike(LAW)
KNOBS = VllmKnobs(max_num_batched_tokens=64, max_num_seqs=8, num_blocks=64)


class Device:
    """A runner that takes what the law says, stretched as its test wants."""

    def __init__(self, decode: float = 1.0, chunk: float = 1.0, noise: float = 0.0, seed: int = 0) -> None:
        self.decode, self.chunk, self.noise = decode, chunk, noise
        self.rng = np.random.default_rng(seed)
        self.steps = 0

    def environment(self) -> dict[str, object]:
        return {"device": "cpu"}

    def measure(self, decode_contexts, chunks, seed, lead_in=()) -> StepTiming:
        self.steps += 1
        shape = StepShape(tuple(decode_contexts), tuple(Chunk(*chunk) for chunk in chunks))
        seconds = step_seconds(LAW, *shape.features)[0] * (self.chunk if chunks else self.decode)
        return StepTiming(seconds * float(np.exp(self.noise * self.rng.standard_normal())), 1e-3, False)

    def usage(self) -> dict[str, float]:
        return {}


def some_requests(count: int, seed: int = 7) -> Requests:
    rng = np.random.default_rng(seed)
    return Requests(
        np.cumsum(rng.exponential(0.08, count)), rng.integers(4, 90, count), rng.integers(1, 30, count)
    )
