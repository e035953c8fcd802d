"""Which configurations are tried, and why some of them are not.

The space is a product: token budgets x chunk caps x sequence limits, each on 1..max_replicas replicas. It is
clipped to what the calibration measured, because a step that was never measured cannot be predicted: a budget
above the largest measured step, or more sequences than the largest measured batch, is listed as not covered
instead of being tried. What vLLM itself refuses is listed as invalid. A chunk cap that is not below its budget
never binds, so it would only repeat the uncapped combination: such repeats are counted and left out.
Units: tokens, sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from calibration.steptime import StepTimeArrays, StepTimeModel
from planner.serving_engines import vllm
from planner.simulation.knobs import VllmKnobs

Status = Literal["meets", "fails", "not covered", "saturated", "invalid", "not tried"]

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
class Candidate:
    """One deployment: the same knobs on every replica, requests dealt to them in turn."""

    knobs: VllmKnobs
    replicas: int

    def to_dict(self) -> dict[str, Any]:
        return {"deployment": "aggregated", "replicas": self.replicas, "knobs": knobs_dict(self.knobs)}


@dataclass(frozen=True, slots=True)
class Combination:
    """A knob setting of the space; `status` is "not tried" (yet), or why it never will be."""

    knobs: VllmKnobs
    status: Status = "not tried"
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Values to combine. `chunk_caps_tokens` are long_prefill_token_threshold (0 = no cap)."""

    budgets_tokens: tuple[int, ...]
    chunk_caps_tokens: tuple[int, ...] = (0,)
    max_num_seqs: tuple[int, ...] = (vllm.DEFAULT_MAX_NUM_SEQS,)
    max_replicas: int = DEFAULT_MAX_REPLICAS
    async_scheduling: bool = True
    block_tokens: int = field(default=vllm.DEFAULT_BLOCK_TOKENS)

    def __post_init__(self) -> None:
        for name, values, least in (
            ("budgets_tokens", self.budgets_tokens, 1),
            ("chunk_caps_tokens", self.chunk_caps_tokens, 0),
            ("max_num_seqs", self.max_num_seqs, 1),
        ):
            if not values:
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
        size = len(self.budgets_tokens) * len(self.chunk_caps_tokens) * len(self.max_num_seqs)
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
        )


def default_space(bounds: Bounds, max_replicas: int = DEFAULT_MAX_REPLICAS) -> SearchSpace:
    """Half-octave budgets and octave caps over the last factor of 16 below the largest measured step, octave
    sequence limits over the last factor of 16 below the largest measured batch."""
    budgets = _half_octaves(bounds.step_tokens)
    return SearchSpace(
        budgets_tokens=budgets,
        chunk_caps_tokens=(0, *(v for v in _octaves(bounds.step_tokens) if v < budgets[-1])),
        max_num_seqs=_octaves(bounds.batch),
        max_replicas=max_replicas,
    )


def default_space_of(model: Mapping[str, Any], max_replicas: int = DEFAULT_MAX_REPLICAS) -> SearchSpace:
    """`default_space` of a stored model (`StepTimeModel.to_dict`)."""
    return default_space(Bounds.of(StepTimeModel.from_dict(model).arrays()), max_replicas)


def _octaves(limit: int, span: int = 16) -> tuple[int, ...]:
    powers = [1 << k for k in range(21)]
    return tuple(v for v in powers if limit / span <= v <= limit) or (limit,)


def _half_octaves(limit: int, span: int = 16) -> tuple[int, ...]:
    values = sorted({1 << k for k in range(21)} | {3 << k for k in range(20)})
    return tuple(v for v in values if limit / span < v <= limit) or (limit,)


def combinations(
    space: SearchSpace, bounds: Bounds, kv_tokens: int, max_model_len: int
) -> tuple[tuple[Combination, ...], int]:
    """All knob settings of `space` in a fixed order, and how many repeats of uncapped ones were left out."""
    found: list[Combination] = []
    repeats = 0
    blocks = vllm.usable_blocks(kv_tokens, space.block_tokens)
    for budget in sorted(space.budgets_tokens):
        for cap in sorted(space.chunk_caps_tokens):
            if cap >= budget and 0 in space.chunk_caps_tokens:
                repeats += len(space.max_num_seqs)
                continue
            for seqs in sorted(space.max_num_seqs):
                knobs = VllmKnobs(
                    max_num_batched_tokens=budget,
                    max_num_seqs=seqs,
                    long_prefill_token_threshold=cap,
                    async_scheduling=space.async_scheduling,
                    block_size=space.block_tokens,
                    num_blocks=blocks,
                )
                found.append(_judged(knobs, bounds, max_model_len))
    return tuple(found), repeats


def _judged(knobs: VllmKnobs, bounds: Bounds, max_model_len: int) -> Combination:
    rules = vllm.violations(knobs, max_model_len)
    errors = [rule.message for rule in rules if rule.severity == "error"]
    warnings = tuple(rule.message for rule in rules if rule.severity == "warning")
    if errors:
        return Combination(knobs, "invalid", f"vLLM refuses it: {'; '.join(errors)}", warnings)
    if knobs.max_num_batched_tokens > bounds.step_tokens:
        reason = (
            f"its steps hold up to {knobs.max_num_batched_tokens:,} tokens and the calibration measured up to "
            f"{bounds.step_tokens:,}"
        )
        return Combination(knobs, "not covered", reason, warnings)
    if knobs.max_num_seqs > bounds.batch:
        reason = (
            f"its batches hold up to {knobs.max_num_seqs:,} sequences and the calibration measured up to "
            f"{bounds.batch:,}"
        )
        return Combination(knobs, "not covered", reason, warnings)
    return Combination(knobs, warnings=warnings)


def distance_from_defaults(knobs: VllmKnobs) -> tuple[int, float]:
    """How far `knobs` are from vLLM's defaults: knobs that differ, then octaves between them. Smaller is simpler."""
    budget = abs(math.log2(knobs.max_num_batched_tokens / vllm.DEFAULT_BUDGET_TOKENS))
    seqs = abs(math.log2(knobs.max_num_seqs / vllm.DEFAULT_MAX_NUM_SEQS))
    cap = knobs.long_prefill_token_threshold
    capped = math.log2(knobs.max_num_batched_tokens / cap) if cap else 0.0
    return sum(v != 0 for v in (budget, seqs, cap)), budget + seqs + abs(capped)


def knobs_dict(knobs: VllmKnobs) -> dict[str, Any]:
    """The knobs a user sets, by vLLM's names, and the KV pool they were simulated with."""
    return {
        "max_num_batched_tokens": knobs.max_num_batched_tokens,
        "max_num_seqs": knobs.max_num_seqs,
        "long_prefill_token_threshold": knobs.long_prefill_token_threshold,
        "async_scheduling": knobs.async_scheduling,
        "block_size": knobs.block_size,
        "num_blocks": knobs.num_blocks,
    }


def knobs_text(knobs: VllmKnobs, names: Sequence[str] = ("budget", "seqs", "cap")) -> str:
    """`max_num_batched_tokens 2048, max_num_seqs 256[, long_prefill_token_threshold 512]`."""
    parts = {
        "budget": f"max_num_batched_tokens {knobs.max_num_batched_tokens}",
        "seqs": f"max_num_seqs {knobs.max_num_seqs}",
        "cap": f"long_prefill_token_threshold {knobs.long_prefill_token_threshold}",
    }
    if not knobs.long_prefill_token_threshold:
        parts.pop("cap")
    return ", ".join(parts[name] for name in names if name in parts)
