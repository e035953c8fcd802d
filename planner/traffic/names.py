"""Names of columns in the files people have, as `normal` writes them.

A name stands here only if it cannot mean something else: "tokens" alone, or "length", is not guessed at.
"""

from __future__ import annotations

import re

from planner.traffic.layout import Unit

KNOWN: tuple[tuple[str, str, str, str, Unit | None], ...] = (
    # format, time, prompt, output, unit of time
    ("azure", "timestamp", "contexttokens", "generatedtokens", None),
    ("burstgpt", "timestamp", "request_tokens", "response_tokens", "s"),
    ("splitwise", "arrival_timestamp", "prompt_size", "token_size", "s"),
    ("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens", "s"),
    ("llmservingsim", "arrival_time_ns", "input_toks", "output_toks", "ns"),
)

TIMES = frozenset(
    {
        "timestamp",
        "time",
        "ts",
        "datetime",
        "arrival",
        "arrival_time",
        "arrival_timestamp",
        "arrived_at",
        "request_time",
        "request_timestamp",
        "start_time",
        "created_at",
        "received_at",
    }
)
PROMPTS = frozenset(
    {
        "prompt_tokens",
        "prompt_length",
        "prompt_len",
        "prompt_size",
        "num_prompt_tokens",
        "num_prefill_tokens",
        "input_tokens",
        "input_length",
        "input_len",
        "input_toks",
        "request_tokens",
        "context_tokens",
        "contexttokens",
    }
)
OUTPUTS = frozenset(
    {
        "output_tokens",
        "output_length",
        "output_len",
        "output_toks",
        "num_output_tokens",
        "num_decode_tokens",
        "completion_tokens",
        "generated_tokens",
        "generatedtokens",
        "generation_tokens",
        "response_tokens",
        "response_length",
        "token_size",
    }
)
UNITS: dict[str, Unit] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), "ns"),
}


def normal(name: str) -> str:
    """Lower case, and one underscore for whatever is neither letter nor digit (of any script)."""
    return re.sub(r"[\W_]+", "_", name.strip().lower()).strip("_")
