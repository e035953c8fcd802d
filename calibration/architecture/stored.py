"""An Architecture as JSON, and back. Files come from anywhere, so every value is checked on the way in.

What only some architectures have is written only where it is there: a dense model's JSON, and with it the
hashes of calibrations made before the other families were described, stays what it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calibration.architecture.parts import Capping, Counts, Experts, Latent, RecurrentState
from calibration.architecture.values import (
    LIMITS,
    UnsupportedArchitecture,
    flag,
    indices,
    integer,
    optional_integer,
    optional_mapping,
    positive,
    printable,
    shown,
    text,
)

if TYPE_CHECKING:
    from calibration.architecture.model import Architecture

_ALWAYS = (
    "name", "model_type", "layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size",
    "tie_word_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "rope_theta", "rms_norm_eps",
    "max_position_tokens", "sliding_window_tokens", "windowed_layers", "quantization",
)  # fmt: skip
_SOMETIMES: dict[str, object] = {
    "cached_layers": None,
    "chunked": False,
    "windowed_at": [],
    "capping": None,
    "experts": None,
    "latent": None,
    "state": None,
    "counts": None,
    "notes": [],
}
_PARTS: dict[str, type[Experts] | type[Latent] | type[RecurrentState] | type[Counts] | type[Capping]] = {
    "capping": Capping,
    "experts": Experts,
    "latent": Latent,
    "state": RecurrentState,
    "counts": Counts,
}
_MOST_NOTES = 8


def to_dict(architecture: Architecture) -> dict[str, object]:
    """All fields that are not absent, JSON-safe."""
    fields = dataclasses.asdict(architecture) | {"notes": list(architecture.notes)}
    fields["windowed_at"] = list(architecture.windowed_at)
    if architecture.experts is not None:
        fields["experts"]["dense_at"] = list(architecture.experts.dense_at)
    return {key: value for key, value in fields.items() if key in _ALWAYS or value != _SOMETIMES[key]}


def fields_of(mapping: Mapping[str, object]) -> dict[str, Any]:
    """The fields of a stored Architecture, checked one by one; raises only UnsupportedArchitecture."""
    if not isinstance(mapping, Mapping):
        raise UnsupportedArchitecture("architecture", f"must be an object, got {shown(mapping)}")
    for key in mapping:
        if key not in _ALWAYS and key not in _SOMETIMES:
            raise UnsupportedArchitecture("architecture", f"has no field {shown(key)}")
    fields: dict[str, Any] = {
        "name": text(mapping, "name", required=False),
        "model_type": text(mapping, "model_type"),
        "rope_theta": positive(mapping, "rope_theta", 10_000.0),
        "rms_norm_eps": positive(mapping, "rms_norm_eps", 1e-6),
        "sliding_window_tokens": optional_integer(mapping, "sliding_window_tokens"),
        "windowed_layers": integer(mapping, "windowed_layers", minimum=0, default=0),
        "cached_layers": _cached_layers(mapping),
        "quantization": text(mapping, "quantization", required=False),
        "notes": _notes(mapping),
        "windowed_at": tuple(sorted(indices(mapping, "windowed_at", LIMITS["layers"]))),
    }
    for key in ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size"):
        fields[key] = integer(mapping, key)
    fields["max_position_tokens"] = integer(mapping, "max_position_tokens")
    for key in ("tie_word_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "chunked"):
        fields[key] = flag(mapping, key)
    for key, part in _PARTS.items():
        nested = optional_mapping(mapping, key)
        fields[key] = None if nested is None else part.from_dict(nested)
    return fields


def _cached_layers(mapping: Mapping[str, object]) -> int | None:
    if mapping.get("cached_layers") is None:
        return None
    return integer(mapping, "cached_layers")


def _notes(mapping: Mapping[str, object]) -> tuple[str, ...]:
    notes = mapping.get("notes")
    if notes is None:
        return ()
    if not isinstance(notes, list | tuple) or len(notes) > _MOST_NOTES:
        raise UnsupportedArchitecture("notes", f"must be a list of at most {_MOST_NOTES} sentences")
    if not all(isinstance(note, str) for note in notes):
        raise UnsupportedArchitecture("notes", "may hold text only")
    return tuple(printable(note) for note in notes)
