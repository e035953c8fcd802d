"""How each engine is launched for a pool: image, command, arguments, and a configuration file where it takes one.

`command` names the program, the model and the address; `arguments` are the engine's own, from its table of flags.
Images are the engines' published ones where the version has one; TensorRT-LLM's is left to the user, because its
profile was read from the main branch and no release was checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import yaml

from planner.recipes.service import EngineKnobs, Pool, Service
from planner.serving_engines import dynamo, roles, sglang, tensorrt_llm, vllm
from planner.simulation.knobs import SglangKnobs, VllmKnobs

PORT: Final = 8000
CONFIG_FILE: Final = "config.yaml"
CONFIG_FOLDER: Final = "/ridgeline"

VLLM, SGLANG, TENSORRT_LLM = "vllm", "sglang", "tensorrt_llm"
TITLES: Final = {VLLM: "vLLM", SGLANG: "SGLang", TENSORRT_LLM: "TensorRT-LLM"}
VERSIONS: Final = {VLLM: vllm.VERSION, SGLANG: sglang.VERSION, TENSORRT_LLM: tensorrt_llm.VERSION}
IMAGES: Final = {
    VLLM: f"vllm/vllm-openai:v{vllm.VERSION}",
    SGLANG: f"lmsysorg/sglang:v{sglang.VERSION}",
    TENSORRT_LLM: "tensorrt-llm:choose-a-release",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """`command` and `arguments` are argv elements; `config` the text of CONFIG_FILE, if the engine reads one."""

    image: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    config: str = ""


def engine_of(knobs: EngineKnobs) -> str:
    if isinstance(knobs, VllmKnobs):
        return VLLM
    return SGLANG if isinstance(knobs, SglangKnobs) else TENSORRT_LLM


def launch(service: Service, pool: Pool, config_path: str = f"{CONFIG_FOLDER}/{CONFIG_FILE}") -> Launch:
    """`config_path`: where the engine will find its configuration file, if it takes one.

    Raises ValueError for knobs that the engine refuses or that no checked flag expresses.
    """
    knobs, role, degree = pool.knobs, pool.role, pool.tensor_parallel
    engine = engine_of(knobs)
    if isinstance(knobs, VllmKnobs):
        command = ["vllm", "serve", service.model]
        arguments = [*vllm_flags(service, pool), *roles.vllm_arguments(role)]
        return Launch(IMAGES[engine], tuple(command), tuple(arguments))
    if isinstance(knobs, SglangKnobs):
        command = ["python3", "-m", "sglang.launch_server", "--model-path", service.model]
        command += ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104  in a container
        arguments = sglang.flags(knobs, service.max_model_len) + roles.sglang_arguments(role, degree)
        return Launch(IMAGES[engine], tuple(command), tuple(arguments))
    longest = service.longest_prompt_tokens
    config = tensorrt_llm.config(knobs, service.max_model_len, longest)
    config |= roles.tensorrt_llm_config(role, degree, longest)
    command = ["trtllm-serve", service.model, "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
    command += ["--config", config_path]
    return Launch(IMAGES[engine], tuple(command), (), yaml.safe_dump(config, sort_keys=False))


def dynamo_launch(service: Service, pool: Pool) -> Launch:
    """The same pool as a Dynamo worker; only for vLLM."""
    command = ("python3", "-m", "dynamo.vllm", "--model", service.model)
    return Launch("", command, tuple(dynamo.worker_arguments(pool.role, vllm_flags(service, pool))))


def vllm_flags(service: Service, pool: Pool) -> list[str]:
    """vLLM's flags for the pool; the KV pool in bytes is one GPU's share."""
    assert isinstance(pool.knobs, VllmKnobs)  # noqa: S101  for the type checker
    return vllm.flags(
        pool.knobs,
        service.max_model_len,
        service.architecture,
        bytes_per_element=service.kv_bytes,
        tensor_parallel=pool.tensor_parallel,
    )
