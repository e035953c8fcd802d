"""Made-up step-time laws and the points an experiment would measure of them, for tests of the fit."""

import numpy as np

from calibration.steptime import Chunk, StepSample, StepShape

SIZES = {
    "n": (16, 32, 64, 128, 256, 512, 1024, 2048),
    "b": (1, 2, 4, 8, 16, 32, 64),
    "c": (64, 256, 1024, 4096),
}


def roofline(shape: StepShape) -> float:
    """A law of the fitted family: weights 8 ms, 40 us a token, attention dearer beside a chunk."""
    n, b, S, C, _, P, kvm = shape.features
    base = 0.001 + (0.008**3 + (4e-5 * n) ** 3) ** (1 / 3) + 1e-5 * S
    if not shape.chunks:
        return base + max(1e-4, 1.2e-7 * C)
    return base + 5e-4 + 1e-5 * b + ((8e-7 * kvm) ** 4 + (2.5e-7 * C + 2e-9 * P) ** 4) ** (1 / 4)


def outside(shape: StepShape) -> float:
    """A law outside the family: a hard knee, logarithmic launch cost, decode attention per longest row."""
    n, b, S, C, cmax, P, _ = shape.features
    base = 0.002 + max(0.006, 3e-5 * n) + 2e-4 * np.log1p(b) + 8e-6 * S
    attention = 1.5e-7 * (0.7 * C + 0.3 * cmax * b) + 2.2e-9 * P
    return float(base + attention * (1.6 if shape.chunks and b else 1.0))


def staircase(shape: StepShape, tile: int = 256) -> float:
    """`roofline` whose matmul pays whole tiles beyond the first."""
    n = shape.features[0]
    return roofline(shape) + 4e-5 * max(0, np.ceil(n / tile) - 1) * tile


def shapes(count: int, seed: int, longest: int = 4096) -> list[StepShape]:
    """`count` shapes: a third decode with heterogeneous contexts, a fifth prefill, the rest mixed."""
    rng = np.random.default_rng(seed)
    out = []
    for k in range(count):
        kind = k % 15
        q = int(np.exp(rng.uniform(np.log(16), np.log(2048))))
        p = int(rng.choice([0, 0, 1]) * np.exp(rng.uniform(0, np.log(longest))))
        b = int(np.exp(rng.uniform(0, np.log(64.99))))
        mean = np.exp(rng.uniform(np.log(32), np.log(longest)))
        contexts = np.clip(mean * rng.lognormal(0, 0.5, b), 1, longest).astype(int)
        chunk = (Chunk(q, p),)
        out.append(
            StepShape(tuple(contexts.tolist()) if kind not in (5, 6, 7) else (), chunk if kind >= 5 else ())
        )
    return out


def corners() -> list[StepShape]:
    """The ends of the envelope that `shapes` draws from, so that its hull holds what is drawn later."""
    out = [StepShape((c,) * b) for b in (1, 64) for c in (32, 4096)]
    out += [StepShape((), (Chunk(q, p),)) for q in (16, 2048) for p in (0, 4096)]
    return out + [
        StepShape((c,) * 64, (Chunk(q, p),)) for c, q, p in ((32, 16, 0), (4096, 2048, 4096), (4096, 16, 0))
    ]


def measure(law, where, *, noise: float = 0.02, repeats: int = 5, seed: int = 0, role: str = "fit"):
    """Samples of `law` at `where`: a point's own error and its repeats' spread, both lognormal at `noise`."""
    rng = np.random.default_rng(seed)
    samples = []
    for shape in where:
        level = law(shape) * rng.lognormal(0, noise)
        samples.append(StepSample(shape, tuple((level * rng.lognormal(0, noise, repeats)).tolist()), role))
    return samples
