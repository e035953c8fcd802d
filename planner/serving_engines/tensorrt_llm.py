"""TensorRT-LLM: what its no-evict scheduler accepts, what it does by default, and the configuration that says so.

The rules (tokens):
  a chunk is a multiple of tokens_per_block               so is max_num_tokens, with chunked prefill
  the longest prompt <= max_num_tokens                    without chunked prefill: an error
  prompt + outputs <= max_seq_len <= KV pool              a longer request is never started
Allowed but unwise, so a warning: a budget with no room for a worthwhile chunk beside max_batch_size decodes.
Decodes always come first. Which capacity scheduler runs is not written: no evict is the default, and what is
simulated. Source: the fields of the engine's `llm_args` (main, 2026), as `trtllm-serve --config` reads them from
YAML. Only keys in KEYS are ever written.
"""

from __future__ import annotations

from typing import Any, Final

from planner.serving_engines.rules import (
    WORTHWHILE_CHUNK_TOKENS,
    PolicySupport,
    RuleViolation,
    error,
    refuse,
    warning,
)
from planner.simulation.knobs import DECODE_FIRST, EQUAL_PROGRESS, FAIR_SHARE, PREFILL_FIRST, TrtLlmKnobs

VERSION: Final = "main, 2026"

DEFAULT_MAX_NUM_TOKENS: Final = 8192
DEFAULT_MAX_BATCH_SIZE: Final = 2048
DEFAULT_TOKENS_PER_BLOCK: Final = 32

#: Every key this module may write (a dot: a key within a mapping), with the field it carries.
KEYS: Final[dict[str, str]] = {
    "max_num_tokens": "max_num_tokens",
    "max_batch_size": "max_batch_size",
    "max_seq_len": "max_seq_len",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "scheduler_config.context_chunking_policy": "context_chunking_policy",
    "kv_cache_config.max_tokens": "num_blocks",
    "kv_cache_config.tokens_per_block": "tokens_per_block",
    "disable_overlap_scheduler": "overlap_scheduler",
}

POLICIES: Final = (
    PolicySupport(DECODE_FIRST, "always"),
    PolicySupport(PREFILL_FIRST, "never"),
    PolicySupport(
        FAIR_SHARE,
        "nearest",
        ("scheduler_config.context_chunking_policy",),
        "among prompts only: EQUAL_PROGRESS gives each one unit in turn",
    ),
)


def usable_blocks(kv_tokens: int, block_tokens: int = DEFAULT_TOKENS_PER_BLOCK) -> int:
    """Blocks that requests can use in a pool of `kv_tokens`."""
    return max(0, kv_tokens // block_tokens)


def violations(
    knobs: TrtLlmKnobs, max_seq_len: int, longest_prompt_tokens: int | None = None
) -> tuple[RuleViolation, ...]:
    """Rules between knobs that `knobs` break or strain, for requests of up to `max_seq_len` (>= 1) tokens, prompts
    of up to `longest_prompt_tokens` (None: as long as a request).

    The range of each knob by itself is `TrtLlmKnobs`' own check.
    """
    found: list[RuleViolation] = []
    budget, block = knobs.max_num_tokens, knobs.tokens_per_block
    longest = max_seq_len if longest_prompt_tokens is None else longest_prompt_tokens
    if knobs.enable_chunked_prefill and budget % block:
        found.append(
            error("max_num_tokens", f"chunks of up to {budget} are no multiple of the block of {block}")
        )
    if not knobs.enable_chunked_prefill and longest > budget:
        found.append(
            error(
                "max_num_tokens",
                f"without chunked prefill the budget of {budget} must hold a prompt of {longest} tokens",
            )
        )
    pool_tokens = knobs.num_blocks * block
    if pool_tokens < max_seq_len:
        found.append(
            error(
                "max_seq_len",
                f"the KV pool of {pool_tokens} tokens cannot hold one request of max_seq_len {max_seq_len}",
            )
        )
    seats = knobs.max_batch_size
    if not found and budget < seats + WORTHWHILE_CHUNK_TOKENS:
        found.append(
            warning(
                "max_num_tokens",
                f"{seats} running decodes leave {budget - seats} of {budget} tokens for prompts: prefill starves",
            )
        )
    return tuple(found)


def config(knobs: TrtLlmKnobs, max_seq_len: int, longest_prompt_tokens: int | None = None) -> dict[str, Any]:
    """What the file for `trtllm-serve --config` says, as a mapping of keys (nested once).

    Raises ValueError for knobs that break a rule.
    """
    refuse(violations(knobs, max_seq_len, longest_prompt_tokens))
    written: dict[str, Any] = {
        "max_num_tokens": knobs.max_num_tokens,
        "max_batch_size": knobs.max_batch_size,
        "max_seq_len": max_seq_len,
        "enable_chunked_prefill": knobs.enable_chunked_prefill,
        "disable_overlap_scheduler": not knobs.overlap_scheduler,
        "kv_cache_config": {
            "max_tokens": knobs.num_blocks * knobs.tokens_per_block,
            "tokens_per_block": knobs.tokens_per_block,
        },
    }
    if knobs.enable_chunked_prefill and knobs.context_chunking_policy == EQUAL_PROGRESS:
        written["scheduler_config"] = {"context_chunking_policy": EQUAL_PROGRESS}
    return written


def config_yaml(knobs: TrtLlmKnobs, max_seq_len: int, longest_prompt_tokens: int | None = None) -> str:
    """The same as the YAML text of that file."""
    lines: list[str] = []
    for key, value in config(knobs, max_seq_len, longest_prompt_tokens).items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {inner}: {_scalar(inner_value)}" for inner, inner_value in value.items()]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
