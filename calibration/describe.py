"""The figures of an architecture that page, API and command show alike."""

from __future__ import annotations

from typing import Any

from calibration.architecture import Architecture, remarks

#: Bytes of a KV cache element by what serving engines call the type.
KV_DTYPES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}


def described(
    architecture: Architecture, *, tensor_parallel: int = 1, kv_dtype: str = "bf16", block_tokens: int = 16
) -> dict[str, Any]:
    """Counts and bytes, JSON-safe; weights in bf16. KV bytes are those of all `tensor_parallel` ranks together.

    `kv_bytes_full_context`: of one sequence as long as the model allows, in whole blocks. Raises KeyError for a
    `kv_dtype` that is not in KV_DTYPES.
    """
    a = architecture
    element_bytes = KV_DTYPES[kv_dtype]
    return {
        "name": a.name,
        "model_type": a.model_type,
        "layers": a.layers,
        "hidden_size": a.hidden_size,
        "heads": a.heads,
        "kv_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "vocab_size": a.vocab_size,
        "max_position_tokens": a.max_position_tokens,
        "parameters": a.parameters,
        "parameters_exact": a.parameters_exact,
        "active_parameters": a.active_parameters,
        "flops_per_token": a.flops_per_token,
        "weight_bytes": a.weight_bytes(),
        "quantization": a.quantization,
        "experts": a.experts.experts if a.experts else 0,
        "experts_per_token": a.experts.per_token if a.experts else 0,
        "tensor_parallel": tensor_parallel,
        "kv_dtype": kv_dtype,
        "kv_block_tokens": block_tokens,
        "kv_layers": a.kv_layers,
        "kv_latent_elements": a.latent.elements if a.latent else 0,
        "kv_bytes_per_token": a.kv_bytes_per_token(element_bytes, tensor_parallel),
        "kv_bytes_per_token_growing": a.kv_bytes_per_token_growing(element_bytes, tensor_parallel),
        "kv_bytes_per_token_windowed": a.kv_bytes_per_token_windowed(element_bytes, tensor_parallel),
        "kv_bytes_full_context": a.kv_bytes_of_sequence(
            a.max_position_tokens,
            block_tokens=block_tokens,
            bytes_per_element=element_bytes,
            tensor_parallel=tensor_parallel,
        ),
        "window_tokens": a.sliding_window_tokens,
        "state_elements_per_sequence": a.state.elements if a.state else 0,
        "runnable": a.runnable,
        "not_runnable_reason": a.not_run_reason,
        "remarks": list(remarks(a)),
    }
