"""What a pool's role and its tensor-parallel degree add to an engine's own arguments (vLLM's degree: see `vllm.flags`).

A replica prefills and decodes ("both"), or does one of the two and hands KV caches over. Names are those of
the argument parsers of vLLM 0.33.0 and SGLang 0.5.23 and of TensorRT-LLM's llm_args; a tensor-parallel degree of 1 is
every engine's default and is not written. TensorRT-LLM's transfer buffer must hold the longest prompt.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

Role = Literal["both", "prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = ("both", "prefill", "decode")

VLLM_KV_ROLE: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}

#: Flags this module may write, by engine, with the field each carries.
VLLM_FLAGS: Final = {"--kv-transfer-config": "role"}
SGLANG_FLAGS: Final = {"--disaggregation-mode": "role", "--tp-size": "tensor_parallel"}
TENSORRT_LLM_KEYS: Final = {
    "cache_transceiver_config.backend": "role",
    "cache_transceiver_config.max_tokens_in_buffer": "longest_prompt_tokens",
    "tensor_parallel_size": "tensor_parallel",
}


def vllm_arguments(role: Role) -> list[str]:
    if role == "both":
        return []
    config = {"kv_connector": "NixlConnector", "kv_role": VLLM_KV_ROLE[role]}
    return ["--kv-transfer-config", json.dumps(config, separators=(",", ":"))]


def sglang_arguments(role: Role, tensor_parallel: int) -> list[str]:
    arguments = [] if role == "both" else ["--disaggregation-mode", role]
    if tensor_parallel != 1:
        arguments += ["--tp-size", str(tensor_parallel)]
    return arguments


def tensorrt_llm_config(role: Role, tensor_parallel: int, longest_prompt_tokens: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if role != "both":
        config["cache_transceiver_config"] = {
            "backend": "NIXL",
            "max_tokens_in_buffer": longest_prompt_tokens,
        }
    if tensor_parallel != 1:
        config["tensor_parallel_size"] = tensor_parallel
    return config
