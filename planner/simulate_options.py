"""What `manage.py simulate` is asked, read and checked: engines and their knobs, topologies, objectives of classes.

Pure functions from texts to domain types; every mistake is a SimulateError that names the option and says what to
write instead. Knobs keep their engine's own names; what is not given has the engine's default, or follows from the
calibration (the KV pool). Tokens, requests, seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Final

from planner.search import Objective, ObjectiveError, parse_objective
from planner.serving_engines import vllm
from planner.simulation.cluster.deployment import AFTER_PREFILL, PULL, PUSH_CHUNKS
from planner.simulation.knobs import (
    SCHEDULING_POLICIES,
    Knobs,
    OrcaKnobs,
    PolicyKnobs,
    PrefillFirstKnobs,
    SarathiKnobs,
    SglangKnobs,
    SpeculativeConfig,
    TrtLlmKnobs,
    VllmKnobs,
)
from planner.simulation.microscope import Window

#: `prefill_first` is vLLM V0 (whole prompts in batches of their own); the names with hyphens are generic policies.
ENGINES: Final[Mapping[str, type[Any]]] = {
    "vllm": VllmKnobs,
    "sglang": SglangKnobs,
    "tensorrt_llm": TrtLlmKnobs,
    "sarathi": SarathiKnobs,
    "orca": OrcaKnobs,
    "prefill_first": PrefillFirstKnobs,
    **dict.fromkeys(SCHEDULING_POLICIES, PolicyKnobs),
}
#: How the engine hands KV caches over; the others, which have no two pools of their own, as vLLM.
HAND_OFFS: Final = {"sglang": PUSH_CHUNKS, "tensorrt_llm": AFTER_PREFILL}
DEFAULT_HAND_OFF: Final = PULL

#: Knobs without a default of their own: what the engine starts with on a device below 80 GiB (the tables by usage
#: context in vLLM's engine/arg_utils.py).
STARTS_WITH: Final[Mapping[str, int]] = {
    "max_num_batched_tokens": vllm.DEFAULT_BUDGET_TOKENS,
    "max_num_seqs": vllm.DEFAULT_MAX_NUM_SEQS,
    "chunk_size": 512,
    "chunked_prefill_size": 2048,
    "max_running_requests": 256,
    "max_num_tokens": 8192,
    "max_batch_size": 2048,
}
#: The knobs that bound a step.
BUDGETS: Final = ("max_num_batched_tokens", "chunk_size", "chunked_prefill_size", "max_num_tokens")
#: Fields of vLLM's speculative_config, given like its other knobs.
SPECULATION: Final = {field.name: field for field in fields(SpeculativeConfig)}
#: No engine's knob means anything beyond.
MOST_KNOB: Final = 10**9
_WINDOW = re.compile(r"(s)?(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")


class SimulateError(ValueError):
    """`option` ("--knobs") and `message`."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option, self.message = option, message


def read_knobs(
    engine: str, texts: Mapping[str, str | None], kv_tokens: Callable[[int], int], longest_request: int
) -> Knobs:
    """Knobs of an engine from "name=value,name=value", by the option that gives them; a later text goes before an
    earlier one.

    kv_tokens: the calibration's KV pool beside steps of so many tokens, which the knobs get unless they name their
    own; longest_request: prompt and outputs, for Orca's max_model_len.
    """
    kind = ENGINES[engine]
    known = {field.name: field for field in fields(kind)}
    if engine in SCHEDULING_POLICIES:
        del known["policy"]
    if known.pop("speculative_config", None) is not None:
        known |= SPECULATION
    values: dict[str, Any] = {}
    option = "--knobs"
    for option, text in ((option, text) for option, text in texts.items() if text):
        values |= {
            name: _value(option, known[name], given) for name, given in _pairs(option, text, engine, known)
        }
    if engine in SCHEDULING_POLICIES:
        values["policy"] = engine
    if "max_model_len" in known:
        values.setdefault("max_model_len", longest_request)
    for name, field in known.items():
        if name in STARTS_WITH and field.default is MISSING:
            values.setdefault(name, STARTS_WITH[name])
    budget = next((int(values[name]) for name in BUDGETS if values.get(name, 0) > 0), longest_request)
    _give_pool(option, engine, kind, values, kv_tokens(budget))
    speculation = {name: values.pop(name) for name in SPECULATION if name in values}
    if speculation and not {"num_speculative_tokens", "acceptance_rate"} <= speculation.keys():
        raise SimulateError(option, "speculative decoding needs num_speculative_tokens and acceptance_rate")
    try:
        if speculation:
            values["speculative_config"] = SpeculativeConfig(**speculation)
        knobs: Knobs = kind(**values)
    except ValueError as error:
        raise SimulateError(option, str(error)) from error
    return knobs


def _pairs(option: str, text: str, engine: str, known: Mapping[str, Field[Any]]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if not equals or not value:
            raise SimulateError(option, f"write name=value,name=value, not {part.strip()[:60]!r}")
        if name not in known:
            raise SimulateError(option, f"{engine} has no knob {name[:60]!r}: it has {', '.join(known)}")
        if name in found:
            raise SimulateError(option, f"{name} is given twice")
        found[name] = value
    return list(found.items())


def _value(option: str, field: Field[Any], text: str) -> int | float | bool | str:
    """A knob's value by the type of its field."""
    kind = str(field.type)
    if kind == "bool":
        if text.lower() not in ("true", "false", "1", "0", "on", "off"):
            raise SimulateError(option, f"{field.name} is on or off, not {text[:40]!r}")
        return text.lower() in ("true", "1", "on")
    if kind == "str":
        return text
    number = "whole number" if kind == "int" else "number"
    try:
        value = int(text) if kind == "int" else float(text)
    except ValueError:
        raise SimulateError(option, f"{field.name} is a {number}, not {text[:40]!r}") from None
    if not -MOST_KNOB <= value <= MOST_KNOB:
        raise SimulateError(option, f"{field.name} is a {number} of at most {MOST_KNOB:,}, not {text[:40]!r}")
    return value


def _give_pool(option: str, engine: str, kind: type[Any], values: dict[str, Any], kv_tokens: int) -> None:
    """The KV pool of the calibration in the engine's own unit."""
    if kind is SglangKnobs:
        values.setdefault("max_total_tokens", kv_tokens)
        return
    if "num_blocks" in values:
        return
    name = "tokens_per_block" if kind is TrtLlmKnobs else "block_size"
    default = next(field.default for field in fields(kind) if field.name == name)
    block = values.get(name, default)
    if block < 1:
        raise SimulateError(option, f"{name} must be at least 1, not {block}")
    blocks = vllm.usable_blocks(kv_tokens, block) if engine == "vllm" else kv_tokens // block
    if blocks < 1:
        raise SimulateError(option, f"the KV pool of {kv_tokens} tokens has no block of {block} tokens")
    values["num_blocks"] = blocks


def read_objectives(texts: Sequence[str], option: str = "--objective") -> tuple[Objective, ...]:
    try:
        return tuple(parse_objective(text) for text in texts)
    except ObjectiveError as error:
        raise SimulateError(option, str(error)) from error


def read_class_objectives(
    texts: Sequence[str], class_names: Sequence[str]
) -> dict[str, tuple[Objective, ...]]:
    """From "CLASS=METRIC:pNN:SECONDS", several for one class."""
    option = "--class-objective"
    found: dict[str, tuple[Objective, ...]] = {}
    for text in texts:
        name, equals, objective = text.rpartition("=")
        if not equals:
            raise SimulateError(option, f"write CLASS=METRIC:pNN:SECONDS, not {text[:60]!r}")
        if name not in class_names:
            has = ", ".join(class_names) or "none"
            raise SimulateError(option, f"the traffic has no class {name[:60]!r}: it has {has}")
        found[name] = (*found.get(name, ()), *read_objectives([objective], option))
    return found


def read_by_class(
    option: str, texts: Sequence[str], class_names: Sequence[str], kind: type[int] | type[float]
) -> dict[str, Any]:
    """From "CLASS=NUMBER", one for each class."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, given = text.rpartition("=")
        if not equals:
            raise SimulateError(option, f"write CLASS=NUMBER, not {text[:60]!r}")
        if name not in class_names:
            has = ", ".join(class_names) or "none"
            raise SimulateError(option, f"the traffic has no class {name[:60]!r}: it has {has}")
        if name in found:
            raise SimulateError(option, f"class {name} is given twice")
        try:
            found[name] = kind(given)
        except ValueError:
            raise SimulateError(option, f"{given[:40]!r} is no {'whole ' * (kind is int)}number") from None
        if not -MOST_KNOB <= found[name] <= MOST_KNOB:
            raise SimulateError(option, f"at most {MOST_KNOB:,}, not {given[:40]!r}")
    return found


def read_window(text: str) -> Window:
    """From "12.5:13" (seconds) or "s1000:1100" (schedules)."""
    form = "write FROM:TO in seconds, as 12.5:13, or sFROM:TO in steps, as s1000:1100"
    match = _WINDOW.fullmatch(text.strip())
    if match is None:
        raise SimulateError("--microscope", f"{form}, not {text[:60]!r}")
    by_steps, low, high = match.groups()
    try:
        if by_steps:
            return Window(from_step=int(low), to_step=int(high))
        return Window(float(low), float(high))
    except ValueError as error:
        raise SimulateError("--microscope", f"{error}: {form}") from error
