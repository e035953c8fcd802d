"""What a plan was asked, in a form that can be stored, compared by its hash and asked again."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any, Final

import numba
import numpy as np
import scipy

from planner.simulation.kernel.compiled import sources_digest
from planner.traffic import Traffic
from planner.traffic.identity import arrays_sha256

#: Of a stored result, what is worked out from the rest of it, and what it was made with.
HASHES: Final = ("content_hash", "answer_hash")
MADE_WITH: Final = "made_with"


def traffic_inputs(traffic: Traffic) -> dict[str, Any]:
    return {
        "source": traffic.source,
        "format": traffic.format,
        "requests": traffic.requests,
        "recipe": dict(traffic.recipe),
        "arrays_sha256": arrays_sha256(traffic),
    }


def sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def answer_sha256(result: Mapping[str, Any]) -> str:
    """Of a whole stored result: its inputs and all that was answered, the schedule by time of day included. The same
    question asked again has the same."""
    return sha256({name: value for name, value in result.items() if name not in (*HASHES, MADE_WITH)})


def made_with() -> dict[str, str]:
    """The versions that an answer may depend on, so that who asks again and gets another one can see why."""
    return {
        "python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__,
        "scipy": scipy.__version__, "simulator": sources_digest(),
    }  # fmt: skip
