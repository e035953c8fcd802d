"""A runner whose seconds come from a formula: what it measures is known, so what is made of it can be judged."""

import numpy as np

from calibration.engine.interface import StepTiming
from calibration.steptime import Chunk, StepShape


def roofline_seconds(shape: StepShape) -> float:
    """A step-time law of the kind the fit knows, with the sizes of a small model on a CPU core."""
    n, b, S, C, cmax, P, kvm = shape.features
    base = 0.2e-3 + ((9e-3) ** 3 + (0.36e-3 * n) ** 3) ** (1 / 3) + 0.15e-3 * b + 0.1e-3 * S
    if not shape.chunks:
        return base + ((0.2e-3) ** 4 + (1.4e-6 * C) ** 4 + (1e-7 * cmax) ** 4) ** 0.25
    return base + 0.3e-3 + ((1e-7 * kvm) ** 3 + (1.5e-6 * C + 0.2e-6 * P) ** 3) ** (1 / 3)


class FormulaRunner:
    """Seconds of `law` with lognormal noise; remembers what it was asked."""

    def __init__(self, law=roofline_seconds, noise=0.01, seed=0):
        self.law, self.noise = law, noise
        self.rng = np.random.default_rng(seed)
        self.asked = []
        self.seeds = []
        self.lead_ins = []

    def environment(self):
        return {"dtype": "formula", "device": "cpu"}

    def measure(self, decode_contexts, chunks, seed, lead_in=()):
        shape = StepShape(tuple(decode_contexts), tuple(Chunk(*chunk) for chunk in chunks))
        self.asked.append(shape)
        self.lead_ins.append(tuple(lead_in))
        self.seeds.append(seed)
        seconds = self.law(shape) * float(np.exp(self.noise * self.rng.standard_normal()))
        return StepTiming(seconds, 1e-4, len(self.asked) % 4 == 0)

    def usage(self):
        return {"cpu_s": 1.0, "peak_bytes": 1.0}
