"""SGLang 0.5.23: what its scheduler accepts, what it does by default, and how a configuration is passed to it.

The rules (tokens):
  chunked_prefill_size is a multiple of page_size         chunks end on whole pages
  chunked_prefill_size <= max_prefill_tokens              a larger chunk crashed; -1: no chunks
  prompt + outputs + a page < max_total_tokens            else a prompt is never admitted: the estimate asks for more
Allowed but unwise, so a warning: with mixed chunks the running decodes are taken from the chunk, so one with no room
beside max_running_requests decodes starves prompts.
By default every prefill chunk stalls all decodes (prefill first); `--enable-mixed-chunk` lets them join (decode
first). The share of outputs that the admission estimates starts at 0.7 x `--schedule-conservativeness`.
Source: the engine's own argument parser in 0.5.23. Only flags in FLAGS are ever written.
"""

from __future__ import annotations

from typing import Final

from planner.serving_engines.rules import (
    WORTHWHILE_CHUNK_TOKENS,
    PolicySupport,
    RuleViolation,
    error,
    refuse,
    warning,
)
from planner.simulation.knobs import DECODE_FIRST, FAIR_SHARE, PREFILL_FIRST, SglangKnobs
from planner.simulation.knobs.sglang import LEAST_RATIO_SHARE

VERSION: Final = "0.5.23"

DEFAULT_PAGE_TOKENS: Final = 1
DEFAULT_MAX_PREFILL_TOKENS: Final = 16384
DEFAULT_RATIO: Final = 0.7  # at a conservativeness of 1
DECAY_STEPS: Final = 600  # no flag

#: Every flag this module may write, with the field it carries.
FLAGS: Final[dict[str, str]] = {
    "--chunked-prefill-size": "chunked_prefill_size",
    "--max-prefill-tokens": "max_prefill_tokens",
    "--max-running-requests": "max_running_requests",
    "--max-total-tokens": "max_total_tokens",
    "--page-size": "page_size",
    "--context-length": "context_length",
    "--enable-mixed-chunk": "enable_mixed_chunk",
    "--schedule-conservativeness": "schedule_conservativeness",
    "--prefill-decode-interval": "prefill_decode_interval",
    "--prefill-decode-interval-min-bs": "prefill_decode_interval_min_bs",
    "--disable-overlap-schedule": "overlap_schedule",
}

POLICIES: Final = (
    PolicySupport(DECODE_FIRST, "option", ("--enable-mixed-chunk",)),
    PolicySupport(PREFILL_FIRST, "default", (), "decodes are left out of prefill steps altogether"),
    PolicySupport(
        FAIR_SHARE,
        "nearest",
        ("--prefill-decode-interval", "--prefill-decode-interval-min-bs"),
        "a prefill step is followed by N decode steps",
    ),
)


def violations(knobs: SglangKnobs, context_length: int) -> tuple[RuleViolation, ...]:
    """Rules between knobs that `knobs` break or strain, for requests of up to `context_length` (>= 1) tokens.

    The range of each knob by itself is `SglangKnobs`' own check.
    """
    found: list[RuleViolation] = []
    chunk, page = knobs.chunked_prefill_size, knobs.page_size
    if knobs.is_chunked and chunk % page:
        found.append(
            error("chunked_prefill_size", f"the chunk of {chunk} is no multiple of the page size {page}")
        )
    if chunk > knobs.max_prefill_tokens:
        found.append(
            error(
                "chunked_prefill_size",
                f"the chunk of {chunk} is above max_prefill_tokens {knobs.max_prefill_tokens}",
            )
        )
    pool_tokens = knobs.num_blocks * page
    if context_length + page >= pool_tokens:
        found.append(
            error(
                "context_length",
                f"the KV pool of {pool_tokens} tokens never admits a request of context_length {context_length}",
            )
        )
    seats = knobs.max_running_requests
    if not found and knobs.enable_mixed_chunk and chunk < seats + WORTHWHILE_CHUNK_TOKENS:
        found.append(
            warning(
                "chunked_prefill_size",
                f"{seats} running decodes leave {chunk - seats} of {chunk} tokens for prompts: prefill starves",
            )
        )
    return tuple(found)


def flags(knobs: SglangKnobs, context_length: int) -> list[str]:
    """Arguments of `sglang.launch_server` (0.5.23) for `knobs`, as argv elements; values follow their flag.

    Raises ValueError for knobs that break a rule or that no checked flag expresses.
    """
    refuse(violations(knobs, context_length))
    ratio = knobs.init_new_token_ratio
    if knobs.least_ratio != ratio * LEAST_RATIO_SHARE or knobs.new_token_ratio_decay_steps != DECAY_STEPS:
        raise ValueError(f"new_token_ratio: no flag of SGLang {VERSION} sets its least value or its decay")
    arguments = [
        "--chunked-prefill-size",
        str(knobs.chunked_prefill_size),
        "--max-prefill-tokens",
        str(knobs.max_prefill_tokens),
        "--max-running-requests",
        str(knobs.max_running_requests),
        "--max-total-tokens",
        str(knobs.max_total_tokens),
        "--page-size",
        str(knobs.page_size),
        "--context-length",
        str(context_length),
    ]
    if ratio != DEFAULT_RATIO:
        arguments += ["--schedule-conservativeness", f"{ratio / DEFAULT_RATIO:.6g}"]
    if knobs.enable_mixed_chunk:
        arguments.append("--enable-mixed-chunk")
    if knobs.prefill_decode_interval:
        arguments += ["--prefill-decode-interval", str(knobs.prefill_decode_interval)]
        if knobs.prefill_decode_interval_min_bs:
            arguments += ["--prefill-decode-interval-min-bs", str(knobs.prefill_decode_interval_min_bs)]
    if not knobs.overlap_schedule:
        arguments.append("--disable-overlap-schedule")
    return arguments
