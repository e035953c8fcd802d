"""Requests that a plan leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Excluded:
    """Requests that can never finish: prompt and output exceed max_model_len. `requests`: the first few, by
    position in the traffic (from 0), with their lengths."""

    count: int
    max_model_len: int
    requests: tuple[tuple[int, int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        first = [{"request": i, "prompt_tokens": p, "output_tokens": o} for i, p, o in self.requests]
        return {"count": self.count, "max_model_len": self.max_model_len, "first": first}
