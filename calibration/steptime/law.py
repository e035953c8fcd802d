"""The attention-aware roofline: seconds of a step from its features, with the derivatives a fit needs.

    t = k0 + [w0^s + w(n)^s]^(1/s) + kb*b + kS*S + A        w(n) = g*n + h*stairs(n)             seconds
    A = (a0^4 + (ad*C)^4 + (ac*cmax)^4)^(1/4)                                step without a chunk
    A = a1 + km*b + ((lam*kvm)^4 + (am*C + bp*P)^4)^(1/4)                       step with a chunk

w0 is the time to read the weights, g*n matmul work; the smooth norm is the roofline's knee (Williams et al.,
CACM 2009). Attention in a mixed step has prices of its own: chunk kernels serve decode rows badly (km per row,
am > ad), and run in parallel with the longest sequence (lam), hence the norm: nearly the longer of the two. (Powers
of 2, 3, 4 and 6 left 1.55, 1.53, 1.35 and 1.30 % of median error on the replay table's unfitted rows from 80 points;
4 is what decode has.) `stairs` is matmul's tile
quantisation: work beyond each multiple of the tile costs a whole tile, at once or over a few tokens (a ramp:
what interpolated tables show). All parameters are positive and fitted as logarithms; time is monotone in every
feature by construction. Decode-only steps may run at a padded batch size (CUDA graphs): n is the padded one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.shapes import StepFeatures

Floats = NDArray[np.float64]

PARAMETERS = ("k0", "w0", "g", "h", "s", "kb", "kS", "a0", "ad", "ac", "a1", "km", "lam", "am", "bp")
INDEX = {name: i for i, name in enumerate(PARAMETERS)}


@dataclass(frozen=True, slots=True)
class Tokens:
    """How matmul work counts tokens: tile stairs (tile 0: none) and the padded sizes of decode-only steps.

    attention_power: of the norm in steps with a chunk; 3 in models that were fitted before it was 4.
    """

    tile: int = 0
    ramp: int = 1
    padded_sizes: tuple[int, ...] = ()
    attention_power: int = 4

    def pad(self, n: Floats) -> Floats:
        """n of a step without a chunk, padded to the next captured size; beyond the largest, n itself."""
        if not self.padded_sizes:
            return n
        sizes = np.append(np.asarray(self.padded_sizes, dtype=np.float64), np.inf)
        padded = sizes[np.searchsorted(sizes, n)]
        return np.asarray(np.where(np.isinf(padded), n, padded))

    def padded(self, features: StepFeatures) -> Floats:
        """n of each step as its kernels see it: padded where there is no chunk."""
        return np.asarray(np.where(features.has_chunk, features.n, self.pad(features.n)))

    def stairs(self, n: Floats) -> Floats:
        """Tokens of finished steps below n: rises by one tile over `ramp` tokens past each multiple of it."""
        if not self.tile:
            return np.zeros_like(n)
        edge = np.ceil(n / self.tile) - 1  # multiples of the tile strictly below n
        part = np.minimum(1.0, (n - edge * self.tile) / self.ramp)
        return np.asarray(np.maximum(0.0, self.tile * (edge - 1.0 + part)))


def roofline_s(theta: Floats, tokens: Tokens, n: Floats) -> Floats:
    """[w0^s + w(n)^s]^(1/s) in seconds."""
    work = theta[INDEX["g"]] * n + theta[INDEX["h"]] * tokens.stairs(n)
    return _norm(theta[INDEX["w0"]], work, 1.0 + theta[INDEX["s"]])


def seconds_and_slopes(theta: Floats, tokens: Tokens, features: StepFeatures) -> tuple[Floats, Floats]:
    """Seconds [steps] and their derivatives by the logarithm of each parameter [steps, parameters].

    `theta` holds the parameters in the order of PARAMETERS, all > 0 (s is the norm's exponent less one).
    """
    k0, w0, g, h, s, kb, kS, a0, ad, ac, a1, km, lam, am, bp = theta
    f = features
    n = tokens.padded(f)
    chunk = f.has_chunk.astype(np.float64)
    decode = 1.0 - chunk
    stair = h * tokens.stairs(n)
    work = g * n + stair
    power = 1.0 + s
    roof = _norm(w0, work, power)
    read_share, work_share = (w0 / roof) ** power, (work / roof) ** power
    d, c = ad * f.C, ac * f.cmax
    floor = (a0**4 + d**4 + c**4) ** 0.25
    x, y = lam * f.kvm, am * f.C + bp * f.P
    bend = tokens.attention_power
    norm = (x**bend + y**bend) ** (1.0 / bend)
    safe = np.where(norm > 0, norm, 1.0)
    x_slope, y_slope = chunk * (x / safe) ** (bend - 1), chunk * (y / safe) ** (bend - 1)

    seconds = k0 + roof + kb * f.b + kS * f.S + decode * floor + chunk * (a1 + km * f.b + norm)
    log_read, log_work = np.log(w0 / roof), np.log(np.maximum(work / roof, 1e-300))
    knee = roof * (read_share * log_read + work_share * log_work) / power
    slopes = np.stack(
        [
            np.full_like(n, k0),
            roof * read_share,
            roof * work_share * g * n / np.maximum(work, 1e-300),
            roof * work_share * stair / np.maximum(work, 1e-300),
            knee * s,
            kb * f.b,
            kS * f.S,
            decode * a0**4 / floor**3,
            decode * d**4 / floor**3,
            decode * c**4 / floor**3,
            chunk * a1,
            chunk * km * f.b,
            x_slope * x,
            y_slope * am * f.C,
            y_slope * bp * f.P,
        ],
        axis=-1,
    )
    return seconds, slopes


def attention_s(theta: Floats, features: StepFeatures) -> Floats:
    """Seconds of a step that grow with contexts, prefixes and pairs (not the fixed prices of a chunk or a row)."""
    value = dict(zip(PARAMETERS, theta, strict=True))
    decode = ((value["ad"] * features.C) ** 4 + (value["ac"] * features.cmax) ** 4) ** 0.25
    pairs = value["am"] * features.C + value["bp"] * features.P
    mixed = ((value["lam"] * features.kvm) ** 4 + pairs**4) ** 0.25
    return np.asarray(np.where(features.has_chunk, mixed, decode))


def _norm(a: float, b: Floats, power: float) -> Floats:
    """(a^power + b^power)^(1/power) without overflow, for a > 0 and b >= 0."""
    top = np.maximum(a, b)
    return top * ((a / top) ** power + (b / top) ** power) ** (1.0 / power)
