"""The fitted step-time model: what it predicts, how sure it is, and where it was measured.

An interval joins two things in log space: how far the bootstrap refits disagree at this very step (large where
points are far) and how far measured points lie from refits that did not see them. Student's t with the number of
those points widens it where they are few. Parameters are not shown with intervals: many parameter vectors fit
equally well, predictions are what the points determine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import scalar
from calibration.steptime.check import TOLERANCE, CheckModel, averaged
from calibration.steptime.hull import Hull
from calibration.steptime.law import INDEX, Tokens, roofline_s, seconds_and_slopes
from calibration.steptime.scalar import StepTimeArrays
from calibration.steptime.shapes import StepFeatures
from calibration.steptime.vectorised import steps_seconds

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviation of log(measured/model) of points a refit did not see, and how many there were.

    law: what of it is the law's own error, without the scatter of a point's repeats and that of the refits among each
    other, which are in `scale` too; None where it was not told apart.
    """

    scale: float
    points: int
    law: float | None = None

    @property
    def law_error(self) -> float:
        """`law`, or the most that it can be."""
        return self.scale if self.law is None else self.law


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeModel:
    """Made by `fitting.fit`; all that a calibration publishes about step times."""

    theta: Floats  # [parameters], order of law.PARAMETERS
    check: CheckModel
    tokens: Tokens
    check_shares: tuple[float, float]  # weight of the check model: steps without a chunk, and with one
    refits: Floats  # [bootstrap, parameters]
    refit_checks: tuple[CheckModel, ...]
    hull: Hull
    residual_s: Floats  # small_batches' table
    decode_spread: Spread
    chunk_spread: Spread
    seed: int
    fitted: int  # points
    left_out_losses: dict[str, float]  # of each tile/ramp tried, and of the averages with the check model

    def predict_s(self, features: StepFeatures) -> Floats:
        """Seconds of each step; outside the measured box those of its nearest step."""
        return steps_seconds(self.arrays(), features)[0]

    def covered(self, features: StepFeatures) -> NDArray[np.bool_]:
        """Whether each step is inside the hull and both models agree on it."""
        return steps_seconds(self.arrays(), features)[1]

    def interval_s(self, features: StepFeatures, level: float = 0.9) -> tuple[Floats, Floats]:
        """Prediction interval [s] for the median of a step's repeats, at `level` in (0, 1)."""
        from scipy.special import stdtrit  # here: whoever only reads what was fitted loads no scipy

        if not 0.0 < level < 1.0:
            raise ValueError(f"a level lies between 0 and 1, {level} does not")
        arrays = self.arrays()
        inside = StepFeatures.from_matrix(np.clip(features.matrix(), arrays.low, arrays.high))
        chunk = inside.has_chunk
        disagreement = np.zeros(len(chunk))
        if len(self.refits) > 1:
            refits = zip(self.refits, self.refit_checks, strict=True)
            blends = np.array([self._blend_s(*refit, inside) for refit in refits])
            blends = np.maximum(blends, np.finfo(np.float64).tiny)  # a check model alone may say 0 s
            disagreement = np.var(np.log(blends), axis=0, ddof=1)
        scale = np.where(chunk, self.chunk_spread.scale, self.decode_spread.scale)
        freedom = np.maximum(np.where(chunk, self.chunk_spread.points, self.decode_spread.points) - 1, 1)
        half = stdtrit(freedom, (1 + level) / 2) * np.sqrt(scale**2 + disagreement)
        seconds = steps_seconds(arrays, features)[0]
        return seconds * np.exp(-half), seconds * np.exp(half)

    def _blend_s(self, theta: Floats, check: CheckModel, features: StepFeatures) -> Floats:
        law, _ = seconds_and_slopes(theta, self.tokens, features)
        return averaged(law, check.predict_s(features, self.tokens), self.check_shares, features.has_chunk)

    def arrays(self, refit: int | None = None) -> StepTimeArrays:
        """Flat arrays for `scalar.step_seconds`, of the fit or of one of its bootstrap refits."""
        theta = self.theta if refit is None else self.refits[refit]
        check = self.check if refit is None else self.refit_checks[refit]
        value = {name: theta[i] for name, i in INDEX.items()}
        n = np.arange(int(self.hull.high[0]) + 1, dtype=np.float64)
        padded = self.tokens.pad(n)
        prices = np.zeros(scalar.THETA_SIZE)
        prices[[scalar.ROW_S, scalar.LOGIT_S]] = value["kb"], value["kS"]
        prices[[scalar.FLOOR_4, scalar.DECODE_S, scalar.LONGEST_S]] = (
            value["a0"] ** 4,
            value["ad"],
            value["ac"],
        )
        prices[[scalar.MIXED_S, scalar.MIXED_ROW_S]] = value["a1"], value["km"]
        prices[[scalar.KV_S, scalar.MIXED_DECODE_S, scalar.PAIR_S]] = value["lam"], value["am"], value["bp"]
        prices[scalar.CHECK_TOLERANCE] = TOLERANCE
        prices[scalar.CUBED] = float(self.tokens.attention_power == 3)
        prices[[scalar.DECODE_CHECK_SHARE, scalar.CHUNK_CHECK_SHARE]] = self.check_shares
        context_low, context_high = self.hull.decode_interval(n)
        return StepTimeArrays(
            low=self.hull.low,
            high=self.hull.high,
            theta=prices,
            decode_tokens_s=value["k0"] + roofline_s(theta, self.tokens, padded),
            chunk_tokens_s=value["k0"] + roofline_s(theta, self.tokens, n),
            residual_s=self.residual_s,
            check_decode_s=check.tokens_s(padded, self.tokens),
            check_chunk_s=check.tokens_s(n, self.tokens),
            check=np.r_[check.prices, check.surface_s(np.arange(self.hull.high[1] + 1)).ravel()],
            decode_context_low=context_low,
            decode_context_high=context_high,
            log_tokens=np.log1p(n),
            facets=self.hull.facets,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe form: finite numbers, text, lists; `from_dict` gives the same model back exactly."""
        from calibration.steptime.model_json import model_to_dict  # it imports this module

        return model_to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepTimeModel:
        """Inverse of `to_dict`; raises model_json.ModelFormatError with the field that is wrong."""
        from calibration.steptime.model_json import model_from_dict

        return model_from_dict(data)
