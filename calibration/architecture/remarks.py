"""What the figures of an architecture mean and leave out, in sentences for page, API, command and plan."""

from __future__ import annotations

from calibration.architecture.model import Architecture


def remarks(architecture: Architecture) -> tuple[str, ...]:
    """Sentences, most important first; none for a plain dense model."""
    a = architecture
    found: list[str] = []
    if not a.runnable:
        found.append(f"Described, not run here: {a.not_run_reason}.")
    if not a.parameters_exact:
        found.append("Parameters are approximate: this file switches on tensors that it does not size.")
    if a.experts is not None:
        shared = ", beside a shared one" if a.experts.shared_intermediate_size else ""
        found.append(
            f"In {a.experts.layers} of {a.layers} layers a token uses {a.experts.per_token} of "
            f"{a.experts.experts} experts{shared}: {a.active_parameters:,} active parameters, embedding included."
        )
    found += _cache(a)
    if a.quantization:
        found.append(f"The published weights are {a.quantization}; weight bytes are stated for bf16.")
    return (*found, *a.notes)


def _cache(a: Architecture) -> list[str]:
    found: list[str] = []
    if a.latent is not None:
        found.append(
            f"A token caches one latent of {a.latent.elements} elements a layer, not the keys and values of "
            f"{a.heads} heads. With tensor parallelism every rank keeps all of it."
        )
        if a.latent.index_key_size:
            elements = a.kv_layers * a.latent.index_key_size
            found.append(
                f"Its indexer keeps {elements:,} more elements a token in all layers together, which engines "
                "store in 8 bits with scales: not in the KV bytes."
            )
    if a.sliding_window_tokens is not None:
        what = "the current chunk of" if a.chunked else "the last"
        found.append(
            f"{a.windowed_layers} of {a.layers} layers need {what} {a.sliding_window_tokens:,} tokens only: "
            "their KV bytes stop growing there."
        )
    if a.kv_layers < a.layers:
        found.append(f"{a.kv_layers} of {a.layers} layers have a KV cache.")
    if a.state is not None:
        found.append(
            f"{a.state.layers} layers keep a state of {a.state.elements:,} elements per sequence in all, whatever "
            "its length: not in the KV bytes per token."
        )
    return found
