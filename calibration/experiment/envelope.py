"""The region a user wants to plan in: the largest batch, context and step that a calibration covers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LIMITS = {"max_batch": 1 << 14, "max_context_tokens": 1 << 24, "max_step_tokens": 1 << 20}


class BadEnvelope(ValueError):
    """An envelope that nothing can be measured in: `.field` names the value, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Envelope:
    """max_batch sequences at once, max_context_tokens in one of them, max_step_tokens in one step."""

    max_batch: int
    max_context_tokens: int
    max_step_tokens: int

    def __post_init__(self) -> None:
        for field, limit in _LIMITS.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadEnvelope(field, f"must be a whole number, not {type(value).__name__}")
            if not 1 <= value <= limit:
                raise BadEnvelope(field, f"must be from 1 to {limit:,}")
        if self.max_context_tokens < 2:
            raise BadEnvelope("max_context_tokens", "a context holds at least a prompt token and an answer")
        if self.max_step_tokens < self.max_batch:
            message = f"a step of {self.max_step_tokens} tokens has no room for {self.max_batch} decodes"
            raise BadEnvelope("max_step_tokens", message)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Envelope:
        """Inverse of to_dict; raises BadEnvelope."""
        if not isinstance(mapping, Mapping):
            raise BadEnvelope("envelope", "must be an object")
        for field in _LIMITS:
            if field not in mapping:
                raise BadEnvelope(field, "is missing")
        return cls(**{field: mapping[field] for field in _LIMITS})


#: What the demo plans in (and what its built-in traffic fits).
DEMO_ENVELOPE = Envelope(max_batch=16, max_context_tokens=1_024, max_step_tokens=512)
