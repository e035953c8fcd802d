"""From samples to a model: law, check model, hull, small-batch table and spread, in the order they build on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.check import CheckModel, averaged, fit_check
from calibration.steptime.hull import MAX_TOKENS, build_hull
from calibration.steptime.law import attention_s, seconds_and_slopes
from calibration.steptime.model import Spread, StepTimeModel
from calibration.steptime.samples import FITTED_ROLES, StepSample
from calibration.steptime.shapes import StepFeatures
from calibration.steptime.small_batches import small_batch_table
from calibration.steptime.solving import (
    Data,
    FitError,
    Form,
    bootstrap_law,
    choose_form,
    fit_law,
    prepare,
    scatter_of,
)

Floats = NDArray[np.float64]

MOST_TAKEN = 0.9  # of the bare step: with the small-batch table too, every step takes some time
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
    check = fit_check(data.features, data.seconds, form.tokens, weights=data.weights, detail=form.detail)
    refits = bootstrap_law(data, form, theta, centre, check, bootstrap, rng)
    law_s, _ = seconds_and_slopes(theta, form.tokens, data.features)
    check_s = check.predict_s(data.features, form.tokens)
    predicted_s = averaged(law_s, check_s, form.check_shares, data.features.has_chunk)
    table = small_batch_table(data, predicted_s, refits.left_out)
    table = np.maximum(table, -MOST_TAKEN * _bare_s(theta, check, form, len(table)))
    residuals = refits.left_out - np.log1p(_table_s(table, data) / predicted_s)
    scatter = scatter_of(data, form, refits)
    return StepTimeModel(
        theta=theta,
        check=check,
        tokens=form.tokens,
        check_shares=form.check_shares,
        refits=refits.theta,
        refit_checks=tuple(refits.checks),
        hull=build_hull(data.features, attention_s(theta, data.features) / law_s),
        residual_s=table,
        decode_spread=_spread(residuals, scatter, data.group == 0),
        chunk_spread=_spread(residuals, scatter, data.group > 0),
        seed=seed,
        fitted=len(data),
        left_out_losses=form.losses,
    )


def _bare_s(theta: Floats, check: CheckModel, form: Form, count: int) -> Floats:
    """Seconds of steps of 0..count-1 decodes without any context: the least that such a step can take."""
    n, none = np.arange(count, dtype=np.float64), np.zeros(count)
    features = StepFeatures(n, n, n, none, none, none, none)
    law_s, _ = seconds_and_slopes(theta, form.tokens, features)
    return averaged(law_s, check.predict_s(features, form.tokens), form.check_shares, features.has_chunk)


def _table_s(table: Floats, data: Data) -> Floats:
    """Seconds that the small-batch table adds to each point."""
    if not len(table):
        return np.zeros(len(data))
    at = np.minimum(data.features.n, len(table) - 1).astype(np.int64)
    return np.where((data.group == 0) & (data.features.n < len(table)), table[at], 0.0)


def _spread(residuals: Floats, scatter: Floats, rows: NDArray[np.bool_]) -> Spread:
    """Spread of the left-out log residuals of `rows`; of all points where those are too few to tell.

    scatter: variances that repeats and refits explain. Medians, because one contended point is not the scatter.
    """
    chosen, explained = (each[rows] if rows.sum() >= 4 else each for each in (residuals, scatter))
    size = np.abs(chosen)
    bounded = np.minimum(size, _WINSOR * 1.4826 * np.median(size))
    variance = float(np.mean(bounded**2))
    law = max(0.0, variance - float(np.median(explained)))
    return Spread(float(np.sqrt(variance)), len(chosen), float(np.sqrt(law)))
