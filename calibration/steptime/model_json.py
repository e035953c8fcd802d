"""A step-time model as JSON, and back with every number checked: a calibration file comes from anywhere.

Numbers are written in full (repr of a float64 round-trips), so a model read back predicts bit for bit the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.check import MANY_KNOTS, CheckModel
from calibration.steptime.hull import MAX_TOKENS, Hull
from calibration.steptime.law import PARAMETERS, Tokens
from calibration.steptime.model import Spread, StepTimeModel
from calibration.steptime.scalar import CHECK_SIZE, SURFACE_SIZE
from calibration.steptime.shapes import StepFeatures
from calibration.steptime.small_batches import LARGEST

Floats = NDArray[np.float64]

VERSION = 1
MAX_ROWS = 4096  # of refits, facets, corners
_LARGEST_NUMBER = 1e30  # no quantity of a step comes near; keeps powers of it finite


class ModelFormatError(ValueError):
    """A model's JSON is not one: `field` (dotted path) and `message`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


def model_to_dict(model: StepTimeModel) -> dict[str, Any]:
    """JSON-safe form of `model` (finite numbers, text, lists)."""
    hull, check = model.hull, model.check
    return {
        "version": VERSION,
        "parameters": dict(zip(PARAMETERS, model.theta.tolist(), strict=True)),
        "refits": model.refits.tolist(),
        "tokens": {
            "tile": model.tokens.tile,
            "ramp": model.tokens.ramp,
            "padded_sizes": list(model.tokens.padded_sizes),
            "attention_power": model.tokens.attention_power,
        },
        "check": {
            "share": model.check_shares[0],
            "chunk_share": model.check_shares[1],
            "knots": check.knots.tolist(),
            "values": check.values.tolist(),
            "refits": [refit.values.tolist() for refit in model.refit_checks],
        },
        "hull": {
            "low": hull.low.tolist(),
            "high": hull.high.tolist(),
            "facets": hull.facets.tolist(),
            "decode": hull.decode.tolist(),
        },
        "residual_s": model.residual_s.tolist(),
        "decode_spread": asdict(model.decode_spread),
        "chunk_spread": asdict(model.chunk_spread),
        "seed": model.seed,
        "fitted": model.fitted,
        "left_out_losses": dict(model.left_out_losses),
    }


def model_from_dict(data: Mapping[str, Any]) -> StepTimeModel:
    """Inverse of `model_to_dict`; raises ModelFormatError at the first field that is wrong."""
    if not isinstance(data, Mapping):
        raise ModelFormatError("model", "must be an object")
    version = _whole(data, "version", 1, 10**6)
    if version != VERSION:
        raise ModelFormatError("version", f"this is version {version}, only {VERSION} is understood")
    parameters = _mapping(data, "parameters")
    theta = np.array([_number(parameters, name, "parameters.") for name in PARAMETERS])
    refits = _table(data, "refits", len(PARAMETERS))
    if np.any(theta <= 0) or np.any(refits <= 0):
        raise ModelFormatError("parameters", "every parameter, of refits too, must be above 0")
    spreads = []
    for field in ("decode_spread", "chunk_spread"):
        spread = _mapping(data, field)
        spreads.append(
            Spread(
                _not_negative(spread, "scale", f"{field}."),
                _whole(spread, "points", 0, 10**9, f"{field}."),
                None if spread.get("law") is None else _not_negative(spread, "law", f"{field}."),
            )
        )
    losses = _mapping(data, "left_out_losses")
    residual = _row(data, "residual_s")
    if len(residual) > LARGEST + 1:
        raise ModelFormatError(
            "residual_s", f"has {len(residual)} entries, at most {LARGEST + 1} are allowed"
        )
    check, refit_checks = _checks(_mapping(data, "check"), len(refits))
    model = StepTimeModel(
        theta=theta,
        check=check,
        tokens=_tokens(_mapping(data, "tokens")),
        check_shares=_shares(_mapping(data, "check")),
        refits=refits,
        refit_checks=refit_checks,
        hull=_hull(_mapping(data, "hull")),
        residual_s=residual,
        decode_spread=spreads[0],
        chunk_spread=spreads[1],
        seed=_whole(data, "seed", 0, 2**63),
        fitted=_whole(data, "fitted", 0, 10**9),
        left_out_losses={str(k): _number(losses, k, "left_out_losses.") for k in losses},
    )
    _refuse_absurd(model)
    return model


def _refuse_absurd(model: StepTimeModel) -> None:
    """A simulation must be able to trust that every step takes a finite time above 0."""
    largest = StepFeatures.from_matrix(model.hull.high[None, :])
    arrays = model.arrays()
    small = (
        arrays.decode_tokens_s[: len(arrays.residual_s)] + arrays.residual_s[: len(arrays.decode_tokens_s)]
    )
    if not np.all(np.isfinite(model.predict_s(largest))) or np.any(small <= 0):
        raise ModelFormatError("parameters", "give a step no time, or no finite time")


def _tokens(data: Mapping[str, Any]) -> Tokens:
    sizes = _row(data, "padded_sizes", "tokens.")
    if np.any(sizes < 1) or np.any(np.diff(sizes) <= 0) or np.any(sizes != np.floor(sizes)):
        raise ModelFormatError("tokens.padded_sizes", "must be growing whole numbers from 1")
    return Tokens(
        _whole(data, "tile", 0, MAX_TOKENS, "tokens."),
        _whole(data, "ramp", 1, MAX_TOKENS, "tokens."),
        tuple(int(s) for s in sizes),
        _whole(data, "attention_power", 3, 4, "tokens.") if "attention_power" in data else 3,
    )


def _checks(data: Mapping[str, Any], count: int) -> tuple[CheckModel, tuple[CheckModel, ...]]:
    """The check model and its `count` refits."""
    knots, values = _row(data, "knots", "check."), _row(data, "values", "check.")
    if not 1 <= len(knots) <= MANY_KNOTS or np.any(np.diff(knots) <= 0):
        raise ModelFormatError("check.knots", f"must be 1 to {MANY_KNOTS} growing numbers")
    width = len(knots) + 1 + CHECK_SIZE
    surfaced = width + SURFACE_SIZE
    if len(values) not in (width, surfaced):
        raise ModelFormatError("check.values", f"must be {width} numbers, or {surfaced} with a surface")
    refits = _table(data, "refits", len(values), "check.")
    if len(refits) != count:
        raise ModelFormatError("check.refits", f"must be as many as the law's, {count}")
    every = np.vstack([values[None, :], refits])
    if np.any(every < 0) or np.any(np.diff(every[:, : len(knots)], axis=1) < 0):
        raise ModelFormatError("check.values", "times and prices are never negative and never fall")
    return CheckModel(knots, values), tuple(CheckModel(knots, refit) for refit in refits)


def _shares(data: Mapping[str, Any]) -> tuple[float, float]:
    """Of steps without and with a chunk; models of before they differed have one number."""
    shares = []
    for field in ("share", "chunk_share" if "chunk_share" in data else "share"):
        shares.append(_number(data, field, "check."))
        if not 0 <= shares[-1] <= 1:
            raise ModelFormatError(f"check.{field}", "must lie between 0 and 1")
    return shares[0], shares[1]


def _hull(data: Mapping[str, Any]) -> Hull:
    low, high = _row(data, "low", "hull."), _row(data, "high", "hull.")
    if len(low) != 7 or len(high) != 7 or np.any(low < 0) or np.any(low > high):
        raise ModelFormatError("hull", "low and high must be 7 numbers each, 0 <= low <= high")
    if not 1 <= high[0] <= MAX_TOKENS:
        raise ModelFormatError("hull.high", f"steps of 1 to {MAX_TOKENS} tokens, not {high[0]:g}")
    decode = _table(data, "decode", 2, "hull.")
    if np.any(decode < 0):
        raise ModelFormatError("hull.decode", "must not be negative")
    return Hull(low, high, _table(data, "facets", 4, "hull."), decode)


def _mapping(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = data.get(field)
    if not isinstance(value, Mapping):
        raise ModelFormatError(field, "is missing or not an object")
    return value


def _number(data: Mapping[str, Any], field: str, path: str = "") -> float:
    value = data.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_NUMBER:
        raise ModelFormatError(path + field, "must be a finite number")
    return float(value)


def _not_negative(data: Mapping[str, Any], field: str, path: str = "") -> float:
    value = _number(data, field, path)
    if value < 0:
        raise ModelFormatError(path + field, "must not be negative")
    return value


def _whole(data: Mapping[str, Any], field: str, low: int, high: int, path: str = "") -> int:
    value = _number(data, field, path)
    if value != math.floor(value) or not low <= value <= high:
        raise ModelFormatError(path + field, f"must be a whole number from {low} to {high}")
    return int(data[field])


def _row(data: Mapping[str, Any], field: str, path: str = "") -> Floats:
    value = data.get(field)
    if not isinstance(value, list) or len(value) > MAX_ROWS:
        raise ModelFormatError(path + field, f"must be a list of at most {MAX_ROWS} numbers")
    return np.array([_number({field: v}, field, path) for v in value], dtype=np.float64)


def _table(data: Mapping[str, Any], field: str, width: int, path: str = "") -> Floats:
    value = data.get(field)
    if not isinstance(value, list) or len(value) > MAX_ROWS:
        raise ModelFormatError(path + field, f"must be a list of at most {MAX_ROWS} rows")
    rows = [_row({field: row}, field, path) for row in value]
    if any(len(row) != width for row in rows):
        raise ModelFormatError(path + field, f"every row must have {width} numbers")
    return np.array(rows, dtype=np.float64).reshape(-1, width)
