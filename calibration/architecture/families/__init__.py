"""config.json by family: one reader per `model_type`, in files by what the families have in common."""

from __future__ import annotations

from calibration.architecture.families.dense import FAMILIES as _DENSE
from calibration.architecture.families.early import FAMILIES as _EARLY
from calibration.architecture.families.hybrid import FAMILIES as _HYBRID
from calibration.architecture.families.latent import FAMILIES as _LATENT
from calibration.architecture.families.mixtures import FAMILIES as _MIXTURES
from calibration.architecture.families.reading import Reader

FAMILIES: dict[str, Reader] = _DENSE | _EARLY | _MIXTURES | _LATENT | _HYBRID
