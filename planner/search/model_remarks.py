"""What a plan must say about the model it is for: what was not measured here, and what the simulation leaves out.

The simulated pool counts tokens, each in every layer with a cache, as vLLM reports the size of its pool. A layer
with a window keeps only the last tokens and a recurrent layer keeps a state instead: an engine then holds more
sequences, or needs memory that is not in the pool, and the plan says so instead of guessing how much.
"""

from __future__ import annotations

from calibration.architecture import Architecture


def model_remarks(architecture: Architecture, max_model_len: int) -> tuple[str, ...]:
    """Sentences for requests of up to `max_model_len` tokens; none for a model that is run here as it is."""
    a = architecture
    found: list[str] = []
    if not a.runnable:
        found.append(
            f"{a.name} is described, not run here ({a.not_run_reason}): step times and KV pool are what was "
            "imported, and its KV bytes per token are counted from its config.json."
        )
    window = a.sliding_window_tokens
    if window is not None and window < max_model_len:
        found.append(
            f"Windows are not simulated: every token counts against the KV pool in all {a.kv_layers} layers, though "
            f"{a.windowed_layers} of them need {window:,} tokens at most. An engine that frees the rest preempts "
            "less than predicted."
        )
    if a.state is not None:
        found.append(
            f"Beside the KV pool every running sequence needs a state of {a.state.elements:,} elements, which "
            "neither the simulation nor --kv-cache-memory-bytes counts."
        )
    if a.latent is not None and a.latent.index_key_size:
        elements = a.kv_layers * a.latent.index_key_size
        found.append(
            f"The indexer's {elements:,} elements per token are not in --kv-cache-memory-bytes: an engine that keeps "
            "them in the same memory has room for fewer tokens."
        )
    return tuple(found)
