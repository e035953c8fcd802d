"""How well a fit of a few rows of a step table predicts all others: the proof behind `manage.py fit_check`.

Rows are chosen by shape only (choosing), inside a domain a server could hold; the fit is the one calibrations
use. Scored on every other row of the domain, seed by seed: errors are |predicted/measured - 1|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibration.sources.choosing import chosen_rows, in_domain
from calibration.steptime.fitting import fit
from calibration.steptime.probing import monotonicity_violations
from calibration.steptime.samples import StepSample
from calibration.steptime.shapes import features_of

DOMAIN_TOKENS = 60_000
LARGE_CONTEXT_TOKENS = 15_000
#: What the project holds itself to on the replay table with 40 points: means over seeds, bias on every seed.
BARS = {"median": 0.023, "p90": 0.075, "p95": 0.095, "decode_p90": 0.06, "large_decode_bias": 0.025}


@dataclass(frozen=True, slots=True)
class SeedCheck:
    """One choice of points. Ratios; None where no row of the kind is scored.

    `large_decode_bias`: mean signed error of pure decode at more than LARGE_CONTEXT_TOKENS of context.
    """

    seed: int
    median: float
    p90: float
    p95: float
    decode_p90: float | None
    large_decode_bias: float | None
    violations: int  # of monotonicity, on a 500-point probe
    tile: int
    ramp: int


@dataclass(frozen=True, slots=True)
class FitCheck:
    """All seeds; `points` fitted and `scored` rows in each."""

    points: int
    scored: int
    seeds: tuple[SeedCheck, ...]

    def mean(self, name: str) -> float | None:
        """Mean over the seeds of one figure; of the bias, its mean size."""
        values = [getattr(seed, name) for seed in self.seeds]
        return None if any(v is None for v in values) else float(np.mean(np.abs(values)))

    @property
    def failures(self) -> list[str]:
        """The bars that are not met, in words; empty when all are."""
        found = []
        for name in ("median", "p90", "p95", "decode_p90"):
            value = self.mean(name)
            if value is not None and value > BARS[name]:
                found.append(f"{name} {value:.2%} above {BARS[name]:.1%}")
        for seed in self.seeds:
            bias = seed.large_decode_bias
            if bias is not None and abs(bias) > BARS["large_decode_bias"]:
                found.append(
                    f"seed {seed.seed}: decode bias {bias:+.2%} beyond {BARS['large_decode_bias']:.1%}"
                )
            if seed.violations:
                found.append(f"seed {seed.seed}: {seed.violations} monotonicity violations")
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe, with the means over the seeds and the bars."""
        means = {name: self.mean(name) for name in BARS}
        return asdict(self) | {"mean": means, "bars": dict(BARS), "failures": self.failures}


def fit_check(
    samples: Sequence[StepSample],
    *,
    points: int = 40,
    seeds: int = 5,
    domain_tokens: int = DOMAIN_TOKENS,
    on_seed: Callable[[SeedCheck], None] = lambda seed: None,
) -> FitCheck:
    """Fit `points` rows per seed 0..seeds-1 and score all others. Raises FitError if the domain is too small."""
    inside = [s for s in samples if in_domain(s.shape, domain_tokens)]
    shapes = [s.shape for s in inside]
    features, measured = features_of(shapes), np.array([s.median_s for s in inside])
    found, scored = [], 0
    for seed in range(seeds):
        rows = chosen_rows(shapes, points, seed)
        rest = np.setdiff1d(np.arange(len(inside)), rows)
        scored = len(rest)
        model = fit([inside[i] for i in rows], seed=seed, bootstrap=0)
        signed = model.predict_s(features[rest]) / measured[rest] - 1.0
        size = np.abs(signed)
        decode = ~features.has_chunk[rest]
        large = decode & (features.C[rest] > LARGE_CONTEXT_TOKENS)
        check = SeedCheck(
            seed=seed,
            median=float(np.median(size)),
            p90=float(np.percentile(size, 90)),
            p95=float(np.percentile(size, 95)),
            decode_p90=float(np.percentile(size[decode], 90)) if decode.any() else None,
            large_decode_bias=float(signed[large].mean()) if large.any() else None,
            violations=monotonicity_violations(model, seed=seed),
            tile=model.tokens.tile,
            ramp=model.tokens.ramp,
        )
        found.append(check)
        on_seed(check)
    return FitCheck(points, scored, tuple(found))
