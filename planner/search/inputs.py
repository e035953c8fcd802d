"""What a plan was asked, in a form that can be stored, compared by its hash and asked again."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from planner.traffic import Traffic


def traffic_inputs(traffic: Traffic) -> dict[str, Any]:
    digest = hashlib.sha256()
    for array in (traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens):
        digest.update(np.ascontiguousarray(array).tobytes())
    return {
        "source": traffic.source,
        "format": traffic.format,
        "requests": traffic.requests,
        "recipe": dict(traffic.recipe),
        "arrays_sha256": digest.hexdigest(),
    }


def sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
