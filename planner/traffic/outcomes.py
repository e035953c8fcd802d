"""Did the request succeed? What columns called status, success or error say, reduced to yes or no.

Only the answer is kept: error texts can quote prompts.
"""

from __future__ import annotations

import re

from planner.traffic.names import normal

_FAILED = frozenset(
    {
        "error", "errored", "failed", "failure", "fail", "timeout", "timed_out", "cancelled", "canceled", "aborted",
        "abort", "rejected", "dropped",
    }
)  # fmt: skip
_NO = frozenset({"false", "f", "0", "no", "n"})
_NOTHING = frozenset({"", "0", "none", "null", "nan", "n_a", "false", "ok", "no", "200"})


def says_failed(text: str, column: str) -> bool:
    """Whether this value of that column says that the request failed."""
    key, value = normal(column), normal(text)
    if key in ("error", "error_code"):
        return value not in _NOTHING
    if key == "success":
        return value in _NO or value in _FAILED
    if re.fullmatch(r"\d{3}", value):
        return int(value) >= 400
    return value in _FAILED or value == "false"
