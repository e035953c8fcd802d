"""How long a step takes: shapes and their features, measured samples, the fit and the fitted model."""

from calibration.steptime.fitting import fit
from calibration.steptime.model import StepTimeModel
from calibration.steptime.model_json import ModelFormatError
from calibration.steptime.report import BARS, Gate, HeldoutReport, HeldoutRow, gate, heldout_report
from calibration.steptime.samples import FITTED_ROLES, HELDOUT_ROLES, ROLES, StepSample
from calibration.steptime.scalar import StepTimeArrays, constant_model, linear_model, step_seconds
from calibration.steptime.shapes import (
    FEATURE_NAMES,
    Chunk,
    Kind,
    StepFeatures,
    StepShape,
    features_of,
    kind_of,
    kinds_of,
)
from calibration.steptime.solving import FitError

__all__ = [
    "BARS",
    "FEATURE_NAMES",
    "FITTED_ROLES",
    "HELDOUT_ROLES",
    "ROLES",
    "Chunk",
    "FitError",
    "Gate",
    "HeldoutReport",
    "HeldoutRow",
    "Kind",
    "ModelFormatError",
    "StepFeatures",
    "StepSample",
    "StepShape",
    "StepTimeArrays",
    "StepTimeModel",
    "constant_model",
    "features_of",
    "fit",
    "gate",
    "heldout_report",
    "kind_of",
    "kinds_of",
    "linear_model",
    "step_seconds",
]
