import json

import numpy as np
import pytest

from calibration.sources.fit_check import BARS, FitCheck, SeedCheck, fit_check
from calibration.steptime import Chunk, FitError, StepSample, StepShape


def table(decode_factor=1.0):
    """A grid of a plain law; `decode_factor` makes pure decode at large contexts another one."""
    rows = []
    for q in (0, 16, 128, 1024):
        for b in (0, 1, 4, 16, 64):
            for c in (64, 512, 4096):
                for p in (0, 2048) if q else (0,):
                    if q or b:
                        shape = StepShape((c,) * b, (Chunk(q, p),) if q else ())
                        n, _, S, C, _, P, kvm = shape.features
                        t = 0.002 + np.hypot(0.008, 5e-5 * n) + 1e-5 * S + 2e-7 * C + 3e-9 * P + 4e-7 * kvm
                        rows.append(StepSample(shape, (float(t * (1 if q or C < 2e4 else decode_factor)),)))
    unique = {row.shape: row for row in rows}
    return list(unique.values())


def test_a_smooth_table_passes_and_says_how_well():
    seen = []
    check = fit_check(table(), points=40, seeds=2, on_seed=seen.append)
    assert tuple(seen) == check.seeds
    assert check.failures == []
    assert check.scored + 40 <= len(table())
    assert 0 < check.mean("median") < check.mean("p90") < 0.05
    data = json.loads(json.dumps(check.to_dict(), allow_nan=False))
    assert data["mean"]["median"] == check.mean("median")
    assert data["bars"] == BARS


def test_bars_are_held_on_the_mean_and_bias_on_every_seed():
    good = SeedCheck(0, 0.01, 0.05, 0.06, 0.03, 0.01, 0, 0, 1)
    bad = SeedCheck(1, 0.03, 0.05, 0.06, 0.03, -0.03, 2, 0, 1)
    assert FitCheck(40, 100, (good,)).failures == []
    failures = FitCheck(40, 100, (good, bad)).failures  # the mean of the medians is 2 %: within its bar
    assert failures == ["seed 1: decode bias -3.00% beyond 2.5%", "seed 1: 2 monotonicity violations"]
    assert FitCheck(40, 100, (bad,)).failures[0] == "median 3.00% above 2.3%"


def test_what_lies_outside_the_domain_is_neither_fitted_nor_scored():
    wild = [StepSample(StepShape((60_001,)), (100.0,))]
    assert fit_check(table() + wild, points=30, seeds=1) == fit_check(table(), points=30, seeds=1)


def test_too_small_a_table_is_refused():
    with pytest.raises(FitError):
        fit_check(table()[:5], points=40)
