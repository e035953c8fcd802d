"""From samples to a model: law, check model, hull, small-batch table and spread, in the order they build on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.check import averaged, fit_check
from calibration.steptime.hull import MAX_TOKENS, build_hull
from calibration.steptime.law import attention_s, seconds_and_slopes
from calibration.steptime.model import Spread, StepTimeModel
from calibration.steptime.samples import FITTED_ROLES, StepSample
from calibration.steptime.small_batches import small_batch_table
from calibration.steptime.solving import Data, FitError, bootstrap_law, choose_form, fit_law, prepare

Floats = NDArray[np.float64]

_WINSOR = (
    4.0  # residuals count up to this many median absolute deviations: one contended point is not the spread
)


def fit(
    samples: Sequence[StepSample],
    *,
    seed: int = 0,
    bootstrap: int = 60,
    padded_sizes: Sequence[int] = (),
    staircase: bool = True,
) -> StepTimeModel:
    """Fit the samples whose role is fitted ("fit", "retry"); others are not looked at. Under 2 CPU-seconds.

    padded_sizes: batch sizes that decode-only steps are padded to (captured CUDA graphs), if any.
    staircase: whether tile stairs are tried (they stay only where they predict better). Raises FitError.
    """
    data = prepare([s for s in samples if s.role in FITTED_ROLES])
    if data.features.n.max() > MAX_TOKENS:
        raise FitError(
            f"a step of {data.features.n.max():.0f} tokens; the most a model covers is {MAX_TOKENS}"
        )
    rng = np.random.default_rng(seed)
    form = choose_form(data, tuple(sorted({int(s) for s in padded_sizes})), staircase, rng)
    theta, centre = fit_law(data, form.tokens)
    check = fit_check(data.features, data.seconds, form.tokens, weights=data.weights)
    refits = bootstrap_law(data, form, theta, centre, check, bootstrap, rng)
    law_s, _ = seconds_and_slopes(theta, form.tokens, data.features)
    check_s = check.predict_s(data.features, form.tokens)
    predicted_s = averaged(law_s, check_s, form.check_shares, data.features.has_chunk)
    table = small_batch_table(data, predicted_s, refits.left_out)
    residuals = refits.left_out - np.log1p(_table_s(table, data) / predicted_s)
    return StepTimeModel(
        theta=theta,
        check=check,
        tokens=form.tokens,
        check_shares=form.check_shares,
        refits=refits.theta,
        refit_checks=tuple(refits.checks),
        hull=build_hull(data.features, attention_s(theta, data.features) / law_s),
        residual_s=table,
        decode_spread=_spread(residuals, data.group == 0),
        chunk_spread=_spread(residuals, data.group > 0),
        seed=seed,
        fitted=len(data),
        left_out_losses=form.losses,
    )


def _table_s(table: Floats, data: Data) -> Floats:
    """Seconds that the small-batch table adds to each point."""
    if not len(table):
        return np.zeros(len(data))
    at = np.minimum(data.features.n, len(table) - 1).astype(np.int64)
    return np.where((data.group == 0) & (data.features.n < len(table)), table[at], 0.0)


def _spread(residuals: Floats, rows: NDArray[np.bool_]) -> Spread:
    """Spread of the left-out log residuals of `rows`; of all points where those are too few to tell."""
    chosen = residuals[rows] if rows.sum() >= 4 else residuals
    size = np.abs(chosen)
    bounded = np.minimum(size, _WINSOR * 1.4826 * np.median(size))
    return Spread(float(np.sqrt(np.mean(bounded**2))), len(chosen))
