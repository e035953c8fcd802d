"""The figures of an architecture that page, API and command show alike."""

from __future__ import annotations

from typing import Any

from calibration.architecture import Architecture


def described(architecture: Architecture) -> dict[str, Any]:
    """Counts and bytes, JSON-safe; weights and KV in bf16, one rank."""
    return {
        "name": architecture.name,
        "model_type": architecture.model_type,
        "layers": architecture.layers,
        "hidden_size": architecture.hidden_size,
        "heads": architecture.heads,
        "kv_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "vocab_size": architecture.vocab_size,
        "parameters": architecture.parameters,
        "active_parameters": architecture.active_parameters,
        "weight_bytes": architecture.weight_bytes(),
        "kv_bytes_per_token": architecture.kv_bytes_per_token(),
        "kv_bytes_per_token_growing": architecture.kv_bytes_per_token_growing(),
        "kv_bytes_per_token_windowed": architecture.kv_bytes_per_token_windowed(),
        "runnable": architecture.runnable,
    }
