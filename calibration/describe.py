"""What page, API and command show alike: the figures of an architecture, and what a device is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.architecture import Architecture, remarks
from calibration.engine.sharding import CannotShard, check_shards

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
    unsplit = _unsplit(a, tensor_parallel)
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
        "runnable": a.runnable and not unsplit,
        "not_runnable_reason": a.not_run_reason or unsplit,
        "remarks": [*_split_remarks(a, tensor_parallel, unsplit), *remarks(a)],
    }


def _unsplit(architecture: Architecture, ranks: int) -> str:
    """Why no engine splits the model among so many ranks; empty where one does."""
    try:
        check_shards(architecture, ranks)
    except CannotShard as error:
        return str(error)
    return ""


def _split_remarks(architecture: Architecture, ranks: int, unsplit: str) -> list[str]:
    if ranks == 1:
        return []
    whole = f"All figures are of the whole model, not of one of {ranks} ranks."
    return [whole, *([f"Not to be split so: {unsplit}."] if unsplit and architecture.runnable else [])]


def device_label(device: str, environment: Mapping[str, Any] | None, tensor_parallel: int = 1) -> str:
    """What a reader calls the device: "AMD EPYC 9R14, one core", "2 x NVIDIA H200"; of an import, its own words.

    `device` is the key that a worker takes ("cpu", "cuda:0") or an import's text; `environment` what was recorded.
    """
    kind, recorded = device.partition(":")[0], environment or {}
    if kind == "cuda" and recorded.get("device_name"):
        name = str(recorded["device_name"])
        return f"{tensor_parallel} x {name}" if tensor_parallel > 1 else name
    if device == "cpu" and recorded.get("processor"):
        cores = "one core" if tensor_parallel == 1 else f"{tensor_parallel} processes"
        return f"{recorded['processor']}, {cores}"
    return device
