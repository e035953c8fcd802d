"""JSON as RFC 8259 has it, read and written: no NaN, no infinity, no nesting that ends the interpreter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


class JsonError(ValueError):
    """What is wrong with a text that was to be JSON, in words."""


def read(text: str | bytes) -> Any:
    """The value of a text. JsonError; of NaN, Infinity and numbers beyond float64 as well, and of deep nesting."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except JsonError:
        raise
    except RecursionError:
        raise JsonError("is nested too deeply") from None
    except ValueError as error:  # bad UTF-8 and whole numbers of thousands of digits too
        raise JsonError(f"is not JSON: {str(error)[:200]}") from None


def write(value: Any, indent: int | None = None) -> str:
    """Numbers that JSON has not (NaN of nothing, infinity) become null."""
    return json.dumps(_plain(value), allow_nan=False, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _refuse(token: str) -> Any:
    raise JsonError(f"holds {token}, which is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonError(f"holds {text[:40]}, which is not finite")
    return value
