"""Which values are combined: token budgets x chunk caps x sequence limits x what else the engine can be told.

Each combination stands on 1..max_replicas replicas, or on two pools of so many together. Defaults stay inside what
the calibration measured, because a step that was never measured cannot be predicted (`combinations` lists what is
not covered, or refused by the engine, with its reason). Values go by vLLM's names; `engines` says what they are to
another engine. Units: tokens, sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from calibration.steptime import StepTimeArrays, StepTimeModel
from planner.search.engines import BLOCK_TOKENS, Engine
from planner.serving_engines import vllm
from planner.simulation.cluster.deployment import ROUND_ROBIN, ROUTERS

MAX_REPLICAS: Final = 1024
MAX_COMBINATIONS: Final = 20_000
DEFAULT_MAX_REPLICAS: Final = 8
_MAX_TOKENS: Final = 1 << 20


class SpaceError(ValueError):
    """A search space that cannot be used: `.field` names its part, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a calibration measured: the largest step in tokens and the largest decode batch."""

    step_tokens: int
    batch: int

    @classmethod
    def of(cls, arrays: StepTimeArrays) -> Bounds:
        """Bounds of a fitted model; a model that covers everything has the largest believable ones."""
        step, batch = (int(min(high, _MAX_TOKENS)) for high in arrays.high[:2].tolist())
        return cls(step, batch)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Values to combine. `chunk_caps_tokens` are long_prefill_token_threshold (0 = no cap).

    Of two pools: `transfer_chunks_tokens` are what a push sends on at a time (1: after every step), and prompts of up
    to `local_prefill_tokens` are computed by the decode pool itself (0: none; an empty tuple: none, and half of the
    prompts). `routers` before the replicas, or before each of two pools: `cluster.deployment.ROUTERS`.
    """

    budgets_tokens: tuple[int, ...]
    chunk_caps_tokens: tuple[int, ...] = (0,)
    max_num_seqs: tuple[int, ...] = (vllm.DEFAULT_MAX_NUM_SEQS,)
    max_replicas: int = DEFAULT_MAX_REPLICAS
    async_scheduling: bool = True
    block_tokens: int = vllm.DEFAULT_BLOCK_TOKENS
    transfer_chunks_tokens: tuple[int, ...] = (1,)
    local_prefill_tokens: tuple[int, ...] = ()
    routers: tuple[str, ...] = (ROUND_ROBIN,)

    def __post_init__(self) -> None:
        for name, values, least in (
            ("budgets_tokens", self.budgets_tokens, 1),
            ("chunk_caps_tokens", self.chunk_caps_tokens, 0),
            ("max_num_seqs", self.max_num_seqs, 1),
            ("transfer_chunks_tokens", self.transfer_chunks_tokens, 1),
            ("local_prefill_tokens", self.local_prefill_tokens, 0),
        ):
            if not values and name != "local_prefill_tokens":
                raise SpaceError(name, "give at least one value")
            if len(set(values)) != len(values):
                raise SpaceError(name, "a value is given twice")
            for value in values:
                if not least <= value <= _MAX_TOKENS:
                    raise SpaceError(name, f"values lie in {least}..{_MAX_TOKENS}, not {value}")
        if not 1 <= self.max_replicas <= MAX_REPLICAS:
            raise SpaceError("max_replicas", f"replicas lie in 1..{MAX_REPLICAS}, not {self.max_replicas}")
        if not 1 <= self.block_tokens <= 1024:
            raise SpaceError("block_tokens", f"a KV block holds 1..1024 tokens, not {self.block_tokens}")
        if not self.routers or len(set(self.routers)) < len(self.routers):
            raise SpaceError("routers", "give at least one router, and each once")
        for router in self.routers:
            if router not in ROUTERS:
                raise SpaceError("routers", f"one of {', '.join(ROUTERS)}, not {router[:40]!r}")
        size = len(self.budgets_tokens) * len(self.chunk_caps_tokens) * len(self.max_num_seqs)
        size *= len(self.routers)
        if size > MAX_COMBINATIONS:
            raise SpaceError("budgets_tokens", f"{size} combinations: at most {MAX_COMBINATIONS} are tried")

    def to_dict(self) -> dict[str, Any]:
        return {
            "budgets_tokens": list(self.budgets_tokens),
            "chunk_caps_tokens": list(self.chunk_caps_tokens),
            "max_num_seqs": list(self.max_num_seqs),
            "max_replicas": self.max_replicas,
            "async_scheduling": self.async_scheduling,
            "block_tokens": self.block_tokens,
            "transfer_chunks_tokens": list(self.transfer_chunks_tokens),
            "local_prefill_tokens": list(self.local_prefill_tokens),
            "routers": list(self.routers),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchSpace:
        """The space that `to_dict` wrote. Raises SpaceError for values out of range."""
        return cls(
            budgets_tokens=tuple(int(v) for v in data["budgets_tokens"]),
            chunk_caps_tokens=tuple(int(v) for v in data["chunk_caps_tokens"]),
            max_num_seqs=tuple(int(v) for v in data["max_num_seqs"]),
            max_replicas=int(data["max_replicas"]),
            async_scheduling=bool(data["async_scheduling"]),
            block_tokens=int(data["block_tokens"]),
            transfer_chunks_tokens=tuple(int(v) for v in data.get("transfer_chunks_tokens", (1,))),
            local_prefill_tokens=tuple(int(v) for v in data.get("local_prefill_tokens", ())),
            routers=tuple(str(v) for v in data.get("routers", (ROUND_ROBIN,))),
        )


def default_space(
    bounds: Bounds, max_replicas: int = DEFAULT_MAX_REPLICAS, engine: Engine = "vllm"
) -> SearchSpace:
    """Half-octave budgets and octave caps over the last factor of 16 below the largest measured step, octave
    sequence limits over the last factor of 16 below the largest measured batch."""
    budgets = _half_octaves(bounds.step_tokens)
    return SearchSpace(
        budgets_tokens=budgets,
        chunk_caps_tokens=(0, *(v for v in _octaves(bounds.step_tokens) if v < budgets[-1]))
        if engine == "vllm"
        else (0,),
        max_num_seqs=_octaves(bounds.batch),
        max_replicas=max_replicas,
        block_tokens=BLOCK_TOKENS[engine],
    )


def default_space_of(
    model: Mapping[str, Any], max_replicas: int = DEFAULT_MAX_REPLICAS, engine: Engine = "vllm"
) -> SearchSpace:
    """`default_space` of a stored model (`StepTimeModel.to_dict`)."""
    return default_space(Bounds.of(StepTimeModel.from_dict(model).arrays()), max_replicas, engine)


def _octaves(limit: int, span: int = 16) -> tuple[int, ...]:
    powers = [1 << k for k in range(21)]
    return tuple(v for v in powers if limit / span <= v <= limit) or (limit,)


def _half_octaves(limit: int, span: int = 16) -> tuple[int, ...]:
    values = sorted({1 << k for k in range(21)} | {3 << k for k in range(20)})
    return tuple(v for v in values if limit / span < v <= limit) or (limit,)
