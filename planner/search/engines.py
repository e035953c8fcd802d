"""One engine after another as the search sees them: the same three numbers under each engine's own names.

Every engine has a token budget for a step, a limit on the sequences that run at once and a KV pool; what else it can
be told (a cap on a chunk, mixed batches, how chunks are shared) are its variants. Rules and flags are the engine
modules'; nothing is tried that its engine refuses, and nothing is written that its table does not hold.

  names           budget                    sequences               cap on a chunk
  vllm            max_num_batched_tokens    max_num_seqs            long_prefill_token_threshold
  sglang          chunked_prefill_size      max_running_requests    -
  tensorrt_llm    max_num_tokens            max_batch_size          -
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from calibration.architecture import Architecture
from planner.serving_engines import sglang, tensorrt_llm, vllm
from planner.serving_engines.rules import PolicySupport, RuleViolation
from planner.simulation.cluster.deployment import AFTER_PREFILL, PULL, PUSH_CHUNKS
from planner.simulation.knobs import (
    EQUAL_PROGRESS,
    FIRST_COME_FIRST_SERVED,
    Knobs,
    PolicyKnobs,
    SglangKnobs,
    TrtLlmKnobs,
    VllmKnobs,
)

Engine = Literal["vllm", "sglang", "tensorrt_llm"]
ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
EngineKnobs = VllmKnobs | SglangKnobs | TrtLlmKnobs

TITLES: Final = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}
VERSIONS: Final = {
    "vllm": vllm.VERSION,
    "sglang": sglang.VERSION,
    "tensorrt_llm": tensorrt_llm.VERSION,
}
POLICIES: Final[dict[str, tuple[PolicySupport, ...]]] = {
    "vllm": vllm.POLICIES,
    "sglang": sglang.POLICIES,
    "tensorrt_llm": tensorrt_llm.POLICIES,
}
#: Ways to hand a KV cache over, the engine's default first.
HAND_OFFS: Final[dict[str, tuple[str, ...]]] = {
    "vllm": (PULL,),
    "sglang": (PUSH_CHUNKS,),
    "tensorrt_llm": (AFTER_PREFILL, PUSH_CHUNKS),
}
BLOCK_TOKENS: Final = {
    "vllm": vllm.DEFAULT_BLOCK_TOKENS,
    "sglang": sglang.DEFAULT_PAGE_TOKENS,
    "tensorrt_llm": tensorrt_llm.DEFAULT_TOKENS_PER_BLOCK,
}
NAMES: Final[dict[str, tuple[str, str, str]]] = {
    "vllm": ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"),
    "sglang": ("chunked_prefill_size", "max_running_requests", ""),
    "tensorrt_llm": ("max_num_tokens", "max_batch_size", ""),
}
_DEFAULTS: Final = {
    "vllm": (vllm.DEFAULT_BUDGET_TOKENS, vllm.DEFAULT_MAX_NUM_SEQS),
    "sglang": (2048, 256),
    "tensorrt_llm": (tensorrt_llm.DEFAULT_MAX_NUM_TOKENS, tensorrt_llm.DEFAULT_MAX_BATCH_SIZE),
}


_VLLM_SHOWN: Final = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "long_prefill_token_threshold",
    "async_scheduling",
    "block_size",
    "num_blocks",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """What an engine can be told beside budget, sequences and cap; the defaults are the engine's, but for chunked
    prefill in TensorRT-LLM, which is off there. Each field means something to one engine only."""

    mixed_chunk: bool = False
    chunked: bool = True
    equal_progress: bool = False


VARIANTS: Final[dict[str, tuple[Variant, ...]]] = {
    "vllm": (Variant(),),
    "sglang": (Variant(), Variant(mixed_chunk=True)),
    "tensorrt_llm": (Variant(), Variant(equal_progress=True), Variant(chunked=False)),
}


def engine_of(knobs: Knobs) -> Engine:
    if isinstance(knobs, SglangKnobs):
        return "sglang"
    return "tensorrt_llm" if isinstance(knobs, TrtLlmKnobs) else "vllm"


def budget_of(knobs: Knobs) -> int:
    if isinstance(knobs, PolicyKnobs):
        return knobs.max_num_batched_tokens
    return int(getattr(knobs, NAMES[engine_of(knobs)][0]))


def seqs_of(knobs: Knobs) -> int:
    if isinstance(knobs, PolicyKnobs):
        return knobs.max_num_seqs
    return int(getattr(knobs, NAMES[engine_of(knobs)][1]))


def cap_of(knobs: Knobs) -> int:
    """Tokens of one prompt in a step, at most; 0: no cap beside the budget."""
    return knobs.long_prefill_token_threshold if isinstance(knobs, VllmKnobs) else 0


def variant_of(knobs: Knobs) -> Variant:
    if isinstance(knobs, SglangKnobs):
        return Variant(mixed_chunk=knobs.enable_mixed_chunk)
    if isinstance(knobs, TrtLlmKnobs):
        equal = knobs.context_chunking_policy == EQUAL_PROGRESS
        return Variant(chunked=knobs.enable_chunked_prefill, equal_progress=equal)
    return Variant()


def usable_blocks(engine: Engine, kv_tokens: int, block_tokens: int) -> int:
    """Blocks that requests can use in a pool of `kv_tokens` as measured."""
    if engine == "vllm":
        return vllm.usable_blocks(kv_tokens, block_tokens)
    return tensorrt_llm.usable_blocks(kv_tokens, block_tokens)


def longest_in(engine: Engine, kv_tokens: int, block_tokens: int) -> int:
    """Tokens (prompt and output) of the longest request that such a pool takes."""
    pool = usable_blocks(engine, kv_tokens, block_tokens) * block_tokens
    return pool - block_tokens - 1 if engine == "sglang" else pool


def make(
    engine: Engine,
    budget: int,
    seqs: int,
    kv_tokens: int,
    *,
    block_tokens: int,
    cap: int = 0,
    asynchronous: bool = True,
    variant: Variant | None = None,
    prefix_caching: bool = False,
) -> EngineKnobs:
    """Knobs of `engine`; ValueError for what its knobs cannot be."""
    told = variant or Variant()
    blocks = usable_blocks(engine, kv_tokens, block_tokens)
    if engine == "vllm":
        return VllmKnobs(
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            long_prefill_token_threshold=cap,
            async_scheduling=asynchronous,
            block_size=block_tokens,
            num_blocks=blocks,
            prefix_caching=prefix_caching,
        )
    if engine == "sglang":
        return SglangKnobs(
            chunked_prefill_size=budget,
            max_running_requests=seqs,
            max_total_tokens=blocks * block_tokens,
            page_size=block_tokens,
            max_prefill_tokens=max(budget, sglang.DEFAULT_MAX_PREFILL_TOKENS),
            enable_mixed_chunk=told.mixed_chunk,
            overlap_schedule=asynchronous,
        )
    return TrtLlmKnobs(
        max_num_tokens=budget,
        max_batch_size=seqs,
        num_blocks=blocks,
        tokens_per_block=block_tokens,
        enable_chunked_prefill=told.chunked,
        context_chunking_policy=EQUAL_PROGRESS if told.equal_progress else FIRST_COME_FIRST_SERVED,
        overlap_scheduler=asynchronous,
    )


def violations(knobs: Knobs, max_model_len: int, longest_prompt_tokens: int) -> tuple[RuleViolation, ...]:
    """The engine's rules that `knobs` break or strain."""
    if isinstance(knobs, SglangKnobs):
        return sglang.violations(knobs, max_model_len)
    if isinstance(knobs, TrtLlmKnobs):
        return tensorrt_llm.violations(knobs, max_model_len, longest_prompt_tokens)
    if isinstance(knobs, VllmKnobs):
        return vllm.violations(knobs, max_model_len)
    raise TypeError(f"{type(knobs).__name__} belong to no engine that plans are made for")


def flags(
    knobs: Knobs, max_model_len: int, longest_prompt_tokens: int, architecture: Architecture
) -> tuple[str, ...]:
    """Arguments of the engine's server; of TensorRT-LLM the lines of the file for `--config`."""
    if isinstance(knobs, VllmKnobs):
        return tuple(vllm.flags(knobs, max_model_len, architecture))
    if isinstance(knobs, SglangKnobs):
        return tuple(sglang.flags(knobs, max_model_len))
    if isinstance(knobs, TrtLlmKnobs):
        return tuple(tensorrt_llm.config_yaml(knobs, max_model_len, longest_prompt_tokens).splitlines())
    return ()


def distance_from_defaults(knobs: Knobs) -> tuple[int, float]:
    """How far `knobs` are from the engine's defaults: knobs that differ, then octaves between them."""
    budget, seqs = _DEFAULTS[engine_of(knobs)]
    apart = [abs(math.log2(budget_of(knobs) / budget)), abs(math.log2(seqs_of(knobs) / seqs))]
    cap = cap_of(knobs)
    told = (
        bool(cap),
        isinstance(knobs, SglangKnobs) and knobs.enable_mixed_chunk,
        isinstance(knobs, TrtLlmKnobs) and knobs.context_chunking_policy == EQUAL_PROGRESS,
    )
    capped = abs(math.log2(budget_of(knobs) / cap)) if cap else 0.0
    return sum(v != 0 for v in apart) + sum(told), sum(apart) + capped


def knobs_dict(knobs: Knobs) -> dict[str, Any]:
    """The knobs a user sets, by the engine's own names, and the KV pool they were simulated with."""
    if isinstance(knobs, VllmKnobs):
        found = {name: getattr(knobs, name) for name in _VLLM_SHOWN}
        return found | ({"prefix_caching": True} if knobs.prefix_caching else {})
    return asdict(knobs)


def knobs_text(knobs: Knobs) -> str:
    """`max_num_batched_tokens 2048, max_num_seqs 256[, long_prefill_token_threshold 512]`."""
    budget, seqs, cap = NAMES[engine_of(knobs)]
    parts = [f"{budget} {budget_of(knobs)}", f"{seqs} {seqs_of(knobs)}"]
    if cap_of(knobs):
        parts.append(f"{cap} {cap_of(knobs)}")
    if isinstance(knobs, SglangKnobs) and knobs.enable_mixed_chunk:
        parts.append("enable_mixed_chunk")
    if isinstance(knobs, TrtLlmKnobs):
        if not knobs.enable_chunked_prefill:
            parts.append("enable_chunked_prefill false")
        elif knobs.context_chunking_policy == EQUAL_PROGRESS:
            parts.append(f"context_chunking_policy {EQUAL_PROGRESS}")
    return ", ".join(parts)
