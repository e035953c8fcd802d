"""Fitting the law: robust least squares on log ratios, a staircase only where it predicts better, a bootstrap.

The loss is soft-L1 of log(model/measured) at 3 %, so that a contended sample pulls little, with a weak prior
that holds what the points cannot tell (one parameter vector of many that fit equally well). Pure decode is most
of a real run but few of the shapes one can list: its points get at least DECODE_SHARE of the weight.
Whether matmul's tiles show, and how much of the check model is averaged into the prediction, is decided by
cross-validation among the fitted points. Nothing here ever sees a held-out sample. Seeded: the same samples,
the same fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.check import (
    LOSS_SCALE,
    CheckModel,
    Detail,
    averaged,
    details_for,
    fit_check,
    token_knots,
)
from calibration.steptime.law import INDEX, PARAMETERS, Tokens, seconds_and_slopes
from calibration.steptime.samples import StepSample
from calibration.steptime.shapes import StepFeatures, features_of
from calibration.steptime.starting import starting_points

Floats = NDArray[np.float64]

PRIOR_WIDTH = 2.0  # in log units (a factor of 7)
FARTHEST = 14.0  # log units from the prior's centre within which parameters are sought (a factor of 1e6)
DECODE_SHARE = 0.45
CI_SCALE = 0.05  # relative interval half-width at which a sample's weight is halved
FOLDS = 8
TILES = ((128, 1), (256, 1), (128, 16), (256, 16))  # (tile, ramp) tried against none
MIN_GAIN = 0.1  # share of the left-out loss that a staircase must save, besides a standard error
CHECK_SHARES = (0.25, 0.5, 0.75, 1.0)  # weights of the check model tried in the average, against none
MIN_POINTS = 6
NEAR_NOTHING = 1e-6  # of the fastest step: below it a prediction is only said to be far too small (or large)


class FitError(ValueError):
    """The samples cannot be fitted; says why."""


@dataclass(frozen=True, slots=True)
class Data:
    """What is fitted, N points."""

    features: StepFeatures
    seconds: Floats  # medians
    noise: Floats  # relative half-width of the median's interval; inf for a single repeat
    weights: Floats  # mean 1
    group: NDArray[np.int64]  # 0 decode, 1 prefill, 2 mixed: resampled and left out group by group

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.int64]) -> Data:
        return Data(
            self.features[rows], self.seconds[rows], self.noise[rows], self.weights[rows], self.group[rows]
        )


def prepare(samples: Sequence[StepSample]) -> Data:
    """Features, medians and weights of `samples`, all of which are fitted. Raises FitError if too few."""
    shapes = {s.shape for s in samples}
    if len(shapes) < MIN_POINTS:
        raise FitError(f"a fit needs at least {MIN_POINTS} different step shapes, there are {len(shapes)}")
    features = features_of(s.shape for s in samples)
    seconds = np.array([s.median_s for s in samples])
    noise = np.array([s.ci_half_width for s in samples])
    weights = 1.0 / (1.0 + (np.where(np.isfinite(noise), noise, 0.0) / CI_SCALE) ** 2)
    chunk = features.has_chunk
    decode, others = weights[~chunk].sum(), weights[chunk].sum()
    if decode > 0 and others > 0:
        weights[~chunk] *= max(1.0, DECODE_SHARE / (1 - DECODE_SHARE) * others / decode)
    group = np.where(chunk, np.where(features.b > 0, 2, 1), 0)
    return Data(features, seconds, noise, weights / weights.mean(), group)


def solve(
    data: Data, tokens: Tokens, start: Floats, centre: Floats, evaluations: int = 60
) -> tuple[Floats, float]:
    """The parameters of least loss from `start`, and that loss. `centre`: the prior's, in parameters."""
    from scipy.optimize import least_squares  # here: whoever only reads what was fitted loads no scipy

    free = np.ones(len(PARAMETERS), dtype=bool)
    free[INDEX["h"]] = tokens.tile > 0
    log_centre, log_start = np.log(centre), np.log(start)
    root, pull = np.sqrt(data.weights), LOSS_SCALE / PRIOR_WIDTH
    prior_rows = pull * np.eye(int(free.sum()))
    last: dict[bytes, tuple[Floats, Floats]] = {}  # the solver asks for both at the same point, one by one

    def whole(part: Floats) -> Floats:
        full = log_start.copy()
        full[free] = part
        return full

    def evaluate(part: Floats) -> tuple[Floats, Floats]:
        key = part.tobytes()
        if key not in last:
            last.clear()
            seconds, slopes = seconds_and_slopes(np.exp(whole(part)), tokens, data.features)
            residuals = np.r_[root * np.log(seconds / data.seconds), pull * (part - log_centre[free])]
            jacobian = np.vstack([(root / seconds)[:, None] * slopes[:, free], prior_rows])
            last[key] = residuals, jacobian
        return last[key]

    def residuals_of(part: Floats) -> Floats:
        return evaluate(part)[0]

    def jacobian_of(part: Floats) -> Floats:
        return evaluate(part)[1]

    solution = least_squares(
        residuals_of,
        log_start[free],
        jac=jacobian_of,
        bounds=(log_centre[free] - FARTHEST, log_centre[free] + FARTHEST),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        max_nfev=evaluations,
    )
    return np.exp(whole(solution.x)), float(solution.cost)


def fit_law(data: Data, tokens: Tokens) -> tuple[Floats, Floats]:
    """The best of the four starts, and the prior's centre."""
    starts = starting_points(data.features, data.seconds)
    solutions = [solve(data, tokens, start, starts[0]) for start in starts]
    return min(solutions, key=lambda s: s[1])[0], starts[0]


@dataclass(frozen=True, slots=True)
class Form:
    """What cross-validation among the fitted points chose, and the mean left-out loss of all it tried."""

    tokens: Tokens
    detail: Detail  # of the check model
    check_shares: tuple[float, float]  # its weight in steps without and with a chunk
    losses: dict[str, float]  # by "tile/ramp", and "decode check WEIGHT", "chunk check WEIGHT" of such steps


def choose_form(data: Data, padded_sizes: tuple[int, ...], staircase: bool, rng: np.random.Generator) -> Form:
    """Stairs, or the average with a check model of some detail, where points left out are predicted better.

    Stairs must win by a standard error and MIN_GAIN. An average of two models of different families errs less
    than either when their errors differ; no more is asked of it than to win. Steps without and with a chunk have
    forms of their own in both models, and so each a weight of its own.
    """
    plain = Tokens(padded_sizes=padded_sizes)
    candidates = [plain]
    n = plain.padded(data.features)
    if staircase:
        candidates += [
            Tokens(t, r, padded_sizes) for t, r in TILES if np.sum(n > t) >= 4 and np.sum(n <= t) >= 2
        ]
    fold = _folds(data, rng)
    laws = [_left_out_law(data, tokens, fold) for tokens in candidates]
    losses = np.array([_losses(data, law) for law in laws])
    scores = losses.mean(axis=1)
    best = int(np.argmin(scores))
    gain = losses[0] - losses[best]
    if gain.mean() < max(MIN_GAIN * scores[0], gain.std(ddof=1) / np.sqrt(len(gain))):
        best = 0
    named = {f"{c.tile}/{c.ramp}": float(s) for c, s in zip(candidates, scores, strict=True)}
    details = details_for(len(data))
    averages = [
        _averages(data, laws[best], _left_out_check(data, candidates[best], d, fold)) for d in details
    ]
    shares = [
        {kind: min(tried, key=lambda share: tried[share]) for kind, tried in a.items()} for a in averages
    ]
    totals = [sum(a[kind][s[kind]] for kind in a) for a, s in zip(averages, shares, strict=True)]
    chosen = int(np.argmin(totals))
    for kind, tried in averages[chosen].items():
        count = max(1, int(np.sum((data.group > 0) == (kind == "chunk"))))
        named |= {f"{kind} check {share}": loss / count for share, loss in tried.items() if share}
    named |= {f"check with {d.value}": total / len(data) for d, total in zip(details, totals, strict=True)}
    return Form(candidates[best], details[chosen], (shares[chosen]["decode"], shares[chosen]["chunk"]), named)


def _averages(data: Data, law: Floats, check: Floats) -> dict[str, dict[float, float]]:
    """Loss left out, summed over the steps without a chunk ("decode") and with one, by the check model's share."""
    found = {}
    for kind, rows in (("decode", data.group == 0), ("chunk", data.group > 0)):
        tried = {0.0: float(_losses(data, law)[rows].sum())}
        for share in CHECK_SHARES if rows.any() else ():
            ratio = -np.log((1 - share) * np.exp(-law[rows]) + share * np.exp(-check[rows]))
            tried[share] = float(_losses(data.take(np.flatnonzero(rows)), ratio).sum())
        found[kind] = tried
    return found


@dataclass(frozen=True, slots=True)
class Refits:
    """Bootstrap refits: parameters [count, P], check models, and the left-out log(measured/model) [N]."""

    theta: Floats
    checks: list[CheckModel]
    left_out: Floats


def bootstrap_law(
    data: Data,
    form: Form,
    theta: Floats,
    centre: Floats,
    check: CheckModel,
    count: int,
    rng: np.random.Generator,
) -> Refits:
    """Refits to `count` resamples of the points, kind by kind.

    A left-out ratio is that of a point, averaged over the refits that did not see it: an honest residual,
    though all points are fitted. Points that every refit saw: their plain residual.
    """
    refits, checks = np.empty((count, len(PARAMETERS))), []
    total, times = np.zeros(len(data)), np.zeros(len(data))
    groups = [np.flatnonzero(data.group == g) for g in np.unique(data.group)]
    for k in range(count):
        rows = np.concatenate([rng.choice(group, len(group)) for group in groups])
        drawn = data.take(rows)
        refits[k], _ = solve(drawn, form.tokens, theta, centre, evaluations=12)
        checks.append(
            fit_check(drawn.features, drawn.seconds, form.tokens, check.knots, drawn.weights, form.detail)
        )
        out = np.setdiff1d(np.arange(len(data)), rows)
        total[out] += _blend_ratio(data.take(out), form, refits[k], checks[k])
        times[out] += 1
    plain = _blend_ratio(data, form, theta, check)
    return Refits(refits, checks, np.where(times > 0, total / np.maximum(times, 1), plain))


def scatter_of(data: Data, form: Form, refits: Refits) -> Floats:
    """float64[N]: the variance of each point's log(measured/model) that its repeats (the median's interval) and the
    refits' disagreement explain; a single repeat explains nothing. What is left of a residual is the law's own."""
    variance: Floats = (np.where(np.isfinite(data.noise), data.noise, 0.0) / 1.96) ** 2
    if len(refits.theta) < 2:
        return variance
    ratios = [_blend_ratio(data, form, *refit) for refit in zip(refits.theta, refits.checks, strict=True)]
    variance += np.var(ratios, axis=0, ddof=1)
    return variance


def _blend_ratio(data: Data, form: Form, theta: Floats, check: CheckModel) -> Floats:
    """log(measured/model) of the prediction: the law, or its average with the check model."""
    law, _ = seconds_and_slopes(theta, form.tokens, data.features)
    other = check.predict_s(data.features, form.tokens)
    return _ratio(data.seconds, averaged(law, other, form.check_shares, data.features.has_chunk))


def _ratio(measured_s: Floats, model_s: Floats) -> Floats:
    """log(measured/model). What a model of few points says elsewhere may be nothing, or beyond any number."""
    least, most = measured_s.min(initial=1.0) * NEAR_NOTHING, measured_s.max(initial=0.0) / NEAR_NOTHING
    return np.asarray(np.log(measured_s / np.clip(model_s, least, most)))


def _folds(data: Data, rng: np.random.Generator) -> NDArray[np.int64]:
    """Fold of each point: kinds spread evenly over the folds."""
    order = rng.permutation(len(data))
    order = order[np.argsort(data.group[order], kind="stable")]
    fold = np.empty(len(data), dtype=np.int64)
    fold[order] = np.arange(len(data)) % min(FOLDS, len(data))
    return fold


def _left_out_law(data: Data, tokens: Tokens, fold: NDArray[np.int64]) -> Floats:
    """log(measured/model) of each point by the law, fitted to the other folds."""
    theta, centre = fit_law(data, tokens)
    found = np.empty(len(data))
    for k in range(int(fold.max()) + 1):
        inside, outside = data.take(np.flatnonzero(fold != k)), np.flatnonzero(fold == k)
        refit, _ = solve(inside, tokens, theta, centre, evaluations=15)
        law, _ = seconds_and_slopes(refit, tokens, data.features[outside])
        found[outside] = _ratio(data.seconds[outside], law)
    return found


def _left_out_check(data: Data, tokens: Tokens, detail: Detail, fold: NDArray[np.int64]) -> Floats:
    """As `_left_out_law`, by the check model."""
    found = np.empty(len(data))
    knots = token_knots(tokens.padded(data.features), detail)
    for k in range(int(fold.max()) + 1):
        inside, outside = data.take(np.flatnonzero(fold != k)), np.flatnonzero(fold == k)
        check = fit_check(inside.features, inside.seconds, tokens, knots, inside.weights, detail)
        found[outside] = _ratio(data.seconds[outside], check.predict_s(data.features[outside], tokens))
    return found


def _losses(data: Data, errors: Floats) -> Floats:
    return np.asarray(data.weights * (np.sqrt(1.0 + (errors / LOSS_SCALE) ** 2) - 1.0))
