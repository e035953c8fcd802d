"""vLLM 0.33.0: what its scheduler accepts, what it does by default, and how a configuration is passed to it.

A plan is worth nothing if the engine refuses it at start. The rules (all counts in tokens or sequences):
  max_num_batched_tokens >= max_num_seqs                  every running sequence needs its token
  long_prefill_token_threshold <= max_model_len           0 switches the cap off
  max_num_batched_tokens >= max_model_len                 only with chunked prefill disabled
  prompt + output <= max_model_len <= KV pool             a longer request can never finish
Allowed but unwise, so a warning: a budget with no room for a worthwhile chunk beside max_num_seqs decodes,
because decodes are served first and a full batch then leaves nothing for prompts.
Source: the engine's own argument parser and checks in 0.33.0. Only flags in FLAGS are ever written: each was
checked against that parser. `--scheduling-policy` was not, so only the default queue order can be written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.architecture import Architecture
from planner.serving_engines.rules import WORTHWHILE_CHUNK_TOKENS, PolicySupport, refuse
from planner.serving_engines.rules import RuleViolation as RuleViolation
from planner.simulation.knobs import DECODE_FIRST, FAIR_SHARE, PREFILL_FIRST, VllmKnobs

VERSION: Final = "0.33.0"

#: What `vllm serve` uses on devices below 80 GiB when nothing is said; larger ones have larger defaults.
DEFAULT_BUDGET_TOKENS: Final = 2048
DEFAULT_MAX_NUM_SEQS: Final = 256
DEFAULT_BLOCK_TOKENS: Final = 16

#: Every flag this module may write, with the field it carries.
FLAGS: Final[dict[str, str]] = {
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-num-seqs": "max_num_seqs",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
    "--long-prefill-token-threshold-adaptive": "adaptive_threshold",
    "--prefill-schedule-interval": "prefill_schedule_interval",
    "--watermark": "watermark",
    "--max-model-len": "max_model_len",
    "--block-size": "block_size",
    "--kv-cache-memory-bytes": "kv_cache_memory_bytes",
    "--async-scheduling": "async_scheduling",
    "--no-async-scheduling": "async_scheduling",
    "--tensor-parallel-size": "tensor_parallel_size",
}


#: The generic policies in vLLM: nearest to a fair share are an equal cap of chunks and prefills every N-th step.
POLICIES: Final = (
    PolicySupport(DECODE_FIRST, "always"),
    PolicySupport(PREFILL_FIRST, "never"),
    PolicySupport(
        FAIR_SHARE,
        "nearest",
        ("--long-prefill-token-threshold", "--long-prefill-token-threshold-adaptive"),
        "among prompts only: each may have an equal share of the budget",
    ),
    PolicySupport(
        FAIR_SHARE, "nearest", ("--prefill-schedule-interval",), "prompts run in every N-th step only"
    ),
)


def usable_blocks(kv_tokens: int, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> int:
    """Blocks that requests can use in a pool of `kv_tokens`, as vLLM counts and logs it: one is reserved."""
    return max(0, kv_tokens // block_tokens - 1)


def violations(
    knobs: VllmKnobs, max_model_len: int, *, chunked_prefill: bool = True
) -> tuple[RuleViolation, ...]:
    """Rules between knobs that `knobs` break or strain, for requests of up to `max_model_len` (>= 1) tokens.

    The range of each knob by itself is `VllmKnobs`' own check.
    """
    found: list[RuleViolation] = []

    def error(field: str, message: str) -> None:
        found.append(RuleViolation(field, message, "error"))

    budget, seqs, threshold = (
        knobs.max_num_batched_tokens,
        knobs.max_num_seqs,
        knobs.long_prefill_token_threshold,
    )
    if budget < seqs:
        error("max_num_batched_tokens", f"the budget of {budget} is below max_num_seqs {seqs}")
    if threshold > max_model_len:
        error(
            "long_prefill_token_threshold",
            f"the threshold of {threshold} is above max_model_len {max_model_len}",
        )
    if not chunked_prefill and budget < max_model_len:
        error(
            "max_num_batched_tokens",
            f"without chunked prefill the budget of {budget} must hold max_model_len {max_model_len}",
        )
    pool_tokens = knobs.num_blocks * knobs.block_size
    if pool_tokens < max_model_len:
        error(
            "max_model_len",
            f"the KV pool of {pool_tokens} tokens cannot hold one request of max_model_len {max_model_len}",
        )
    if not found and budget < seqs + WORTHWHILE_CHUNK_TOKENS:
        found.append(
            RuleViolation(
                "max_num_batched_tokens",
                f"{seqs} running decodes leave {budget - seqs} of {budget} tokens for prompts: prefill starves",
                "warning",
            )
        )
    return tuple(found)


def requests_too_long(
    prompt_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64], max_model_len: int
) -> NDArray[np.bool_]:
    """bool[N]: requests whose prompt and output together exceed `max_model_len`."""
    return np.asarray(prompt_tokens + output_tokens > max_model_len)


def flags(
    knobs: VllmKnobs,
    max_model_len: int,
    architecture: Architecture,
    *,
    bytes_per_element: int = 2,
    tensor_parallel: int = 1,
) -> list[str]:
    """Arguments of `vllm serve` (0.33.0) for `knobs`, as argv elements; values follow their flag.

    The KV pool is stated in bytes of one GPU, the reserved block included, so that the server has the pool the plan
    was computed for. Raises ValueError for knobs that break a rule or that no checked flag expresses.
    """
    refuse(violations(knobs, max_model_len))
    if knobs.policy != "fcfs":
        raise ValueError(f"policy: no checked flag of vLLM {VERSION} expresses {knobs.policy!r}")
    if knobs.speculative_config is not None and knobs.speculative_config.num_speculative_tokens:
        raise ValueError(
            "speculative_config: the plan does not know the drafter's model, which the flag must name"
        )
    token_bytes = architecture.kv_bytes_per_token(bytes_per_element, tensor_parallel) // tensor_parallel
    block_bytes = knobs.block_size * token_bytes
    arguments = [
        "--max-num-batched-tokens",
        str(knobs.max_num_batched_tokens),
        "--max-num-seqs",
        str(knobs.max_num_seqs),
        "--max-model-len",
        str(max_model_len),
        "--block-size",
        str(knobs.block_size),
        "--kv-cache-memory-bytes",
        str((knobs.num_blocks + 1) * block_bytes),
        "--async-scheduling" if knobs.async_scheduling else "--no-async-scheduling",
    ]
    if knobs.long_prefill_token_threshold:
        arguments += ["--long-prefill-token-threshold", str(knobs.long_prefill_token_threshold)]
    if knobs.adaptive_threshold:
        arguments.append("--long-prefill-token-threshold-adaptive")
    if knobs.prefill_schedule_interval != 1:
        arguments += ["--prefill-schedule-interval", str(knobs.prefill_schedule_interval)]
    if knobs.watermark:
        arguments += ["--watermark", f"{knobs.watermark:g}"]
    if tensor_parallel != 1:
        arguments += ["--tensor-parallel-size", str(tensor_parallel)]
    return arguments
