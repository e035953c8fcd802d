"""What is to be served: one model by one engine, in one pool or in a prefill and a decode pool."""

from __future__ import annotations

from dataclasses import dataclass

from calibration.architecture import Architecture
from planner.recipes.placement import Placement
from planner.serving_engines.roles import Role
from planner.simulation.knobs import SglangKnobs, TrtLlmKnobs, VllmKnobs

EngineKnobs = VllmKnobs | SglangKnobs | TrtLlmKnobs


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas alike. `tensor_parallel`: GPUs of one replica; `placement`: where they must run, None: anywhere."""

    role: Role
    replicas: int
    knobs: EngineKnobs
    tensor_parallel: int = 1
    placement: Placement | None = None

    @property
    def gpus(self) -> int:
        return self.replicas * self.tensor_parallel

    @property
    def gpus_text(self) -> str:
        """`1 GPU`, `2 GPUs of RTX 4090`: of a replica."""
        on = f" of {self.placement.hardware}" if self.placement else ""
        return f"{self.tensor_parallel} GPU{'s' if self.tensor_parallel > 1 else ''}{on}"


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """`model` is what the engine is told to load. `kv_bytes`: per element of the KV cache. `longest_prompt_tokens`:
    of the traffic. Prompts of up to `local_prefill_tokens` are prefilled on the decode pool. `follow_kv`: the plan
    assumed a router that knows what replicas have cached."""

    name: str
    model: str
    pools: tuple[Pool, ...]
    architecture: Architecture
    max_model_len: int
    longest_prompt_tokens: int
    kv_bytes: int = 2
    local_prefill_tokens: int = 0
    follow_kv: bool = False

    def __post_init__(self) -> None:
        roles = tuple(pool.role for pool in self.pools)
        if roles not in (("both",), ("prefill", "decode")):
            raise ValueError(f"a service is one pool or a prefill and a decode pool, not {roles}")
        if len({type(pool.knobs) for pool in self.pools}) > 1:
            raise ValueError("both pools run the same engine")

    @property
    def apart(self) -> bool:
        return len(self.pools) > 1

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    def pool_name(self, pool: Pool) -> str:
        return self.name if pool.role == "both" else f"{self.name}-{pool.role}"
