"""How long a step takes: shapes and their features, measured samples, the fit and the fitted model."""

from calibration.steptime.samples import ROLES, StepSample
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

__all__ = [
    "FEATURE_NAMES",
    "ROLES",
    "Chunk",
    "Kind",
    "StepFeatures",
    "StepSample",
    "StepShape",
    "StepTimeArrays",
    "constant_model",
    "features_of",
    "kind_of",
    "kinds_of",
    "linear_model",
    "step_seconds",
]
