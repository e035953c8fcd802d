"""Names of columns in the files people have, as `normal` writes them.

A name stands here only if it cannot mean something else: "tokens" alone, or "length", is not guessed at.
"""

from __future__ import annotations

import re

from planner.traffic.layout import Unit

KNOWN: tuple[tuple[str, str, str, str, Unit | None], ...] = (
    # format, time, prompt, output, unit of time
    ("azure", "timestamp", "context_tokens", "generated_tokens", None),
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
        "created",
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
MAX_TOKENS = frozenset({"max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens"})
PRIORITIES = frozenset({"priority", "request_priority"})
CLASSES = ("class", "request_class", "tenant", "tenant_id", "model", "model_name", "model_id")
"""In order of preference: a file may have several; one is taken, the others are listed as not used."""
STATUSES = ("success", "status", "status_code", "http_status", "error", "error_code")
WORDS = frozenset({"words", "word", "word_count"})
CHARACTERS = frozenset({"characters", "chars", "char", "char_count", "character_count"})
_SIDES = {
    **dict.fromkeys(("prompt", "input", "request", "context"), "prompt"),
    **dict.fromkeys(("output", "completion", "response", "generated", "answer"), "output"),
}


def counted_unit(key: str) -> tuple[str, str] | None:
    """("prompt" | "output", "words" | "characters") for names like prompt_chars or num_output_words."""
    side, _, what = key.removeprefix("num_").partition("_")
    unit = "words" if what in WORDS else "characters" if what in CHARACTERS else None
    return (_SIDES[side], unit) if unit and side in _SIDES else None


UNITS: dict[str, Unit] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("min", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hour", "hours"), "h"),
}


def normal(name: str) -> str:
    """Lower case, and one underscore for whatever is neither letter nor digit (of any script) and where a capital
    begins a word (promptTokens)."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[\W_]+", "_", words.lower()).strip("_")
