"""Reading what vLLM logs of every iteration when it is started with --enable-logging-iteration-details.

    INFO 12-22 21:44:40 [core.py:349] Iteration(515): 1 context requests, 512 context tokens, 20 generation requests,
        20 generation tokens, iteration elapsed time: 10.99 ms                                   (one line)
    INFO 10-05 12:00:00 [loggers.py:182] Engine 000: Iteration(516): ... time: 10.95 ms, GPU KV cache usage: 41.2%

The first form came with the flag (January 2026, logged by the engine core), the second when the line moved to the
front end (June 2026), with "(dummy)" for idle data-parallel ranks and, for images, ", encoder inputs: 4, encoder output
embeddings: 3520" at its end. "Context" is prefill: a request without an output token yet. Other lines of the log say
the version, the KV pool, the token budget and whether scheduling is asynchronous; all are used where they are there.
Lines that name no iteration are passed over. One that does and cannot be read is an error with its number: a step
left out would break the chain by which contexts are followed (vllm_contexts). Sources: vllm-project/vllm pull
requests 31193 and 46647.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from calibration.sources.step_csv import LONGEST_S, MAX_BYTES, StepCsvError, StepCsvProblem
from calibration.sources.unpacking import TooLarge, UnpackError, read_bytes

MAX_STEPS = 500_000
MAX_COUNT = 1 << 24

_STEP = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Iteration\((?P<index>\d{1,12})\): "
    r"(?P<context_requests>\d{1,12}) context requests, (?P<context_tokens>\d{1,12}) context tokens, "
    r"(?P<generation_requests>\d{1,12}) generation requests, (?P<generation_tokens>\d{1,12}) generation tokens, "
    r"iteration elapsed time: (?P<ms>\d{1,9}(?:\.\d{1,9})?) ms(?P<dummy> \(dummy\))?"
    r"(?:, GPU KV cache usage: (?P<usage>\d{1,3}(?:\.\d{1,9})?)%)?"
    r"(?:, encoder inputs: (?P<encoder>\d+), encoder output embeddings: \d+)?\s*$"
)
_PROCESS = re.compile(r"\((EngineCore\w*) pid=(\d+)\)")
_STAMP = re.compile(r"\b[A-Z]+ (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_VERSION = re.compile(
    r"(?:vLLM API server version|V1 LLM engine \(v|[Vv]LLM version:?) ?v?(\d+\.\d+[\w.+-]*)"
)
_POOL = re.compile(r"GPU KV cache size: ([\d,]{1,20}) tokens")
_BUDGET = re.compile(r"max_num_batched_tokens[=: ]+(\d{1,9})")
_BLOCK = re.compile(r"\bblock_size[=: ']+(\d{1,6})")
_ASYNC = re.compile(r"[Aa]synchronous scheduling is (enabled|disabled)|async_scheduling[=: ']+(True|False)")
_PREFIX = re.compile(r"enable_prefix_caching[=: ']+(True|False)")


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One line. `usage`: share of the KV pool in use after the step; None in the older form. `stamp_s`: seconds since
    the year began, whole; None where the line has no stamp."""

    line: int
    engine: str
    index: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    seconds: float
    dummy: bool
    encoder_inputs: int
    usage: float | None
    stamp_s: int | None


@dataclass(frozen=True, slots=True)
class VllmLog:
    """The steps in the file's order, and what else the log says; None where it does not."""

    steps: tuple[LoggedStep, ...]
    version: str | None
    kv_tokens: int | None
    budget_tokens: int | None
    block_tokens: int
    asynchronous: bool | None
    prefix_caching: bool | None


def read_vllm_log(source: str | Path | IO[bytes], *, max_bytes: int = MAX_BYTES) -> VllmLog:
    """The log in a file (plain or gzip, told by content). Raises StepCsvError with every problem's line."""
    try:
        data = read_bytes(source, max_bytes)
    except UnpackError as error:
        raise StepCsvError(
            [StepCsvProblem(1, "", str(error))], too_large=isinstance(error, TooLarge)
        ) from error
    text = data.decode("utf-8", errors="replace")  # what engines log of requests may be anything
    steps: list[LoggedStep] = []
    problems: list[StepCsvProblem] = []
    said: dict[str, str] = {}
    last: dict[str, LoggedStep] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if "Iteration(" not in line:
            _take_notice(line, said)
            continue
        step = _step(line, number, problems)
        if step is None:
            continue
        before = last.get(step.engine)
        if before is not None and 0 < step.index <= before.index:
            words = f"iteration {step.index} follows {before.index} (line {before.line}): repeated or out of order"
            problems.append(StepCsvProblem(number, "", words))
        last[step.engine] = step
        steps.append(step)
        if len(steps) > MAX_STEPS:
            problems.append(StepCsvProblem(number, "", f"the log has more than {MAX_STEPS:,} iterations"))
            break
    if problems:
        raise StepCsvError(problems)
    if not steps:
        words = "no line names an iteration: was vLLM started with --enable-logging-iteration-details, at level INFO?"
        raise StepCsvError([StepCsvProblem(1, "", words)])
    return VllmLog(
        steps=tuple(steps),
        version=said.get("version"),
        kv_tokens=_whole(said.get("pool")),
        budget_tokens=_whole(said.get("budget")),
        block_tokens=_whole(said.get("block")) or 16,
        asynchronous=_yes(said.get("async")),
        prefix_caching=_yes(said.get("prefix")),
    )


def _step(line: str, number: int, problems: list[StepCsvProblem]) -> LoggedStep | None:
    found = _STEP.search(line)
    if found is None:
        at = line.index("Iteration(")
        shown = line[at : at + 120].strip()
        problems.append(
            StepCsvProblem(number, "", f"names an iteration but is not one that is known: {shown!r}")
        )
        return None
    names = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")
    counts = [int(found[name]) for name in names]
    seconds, usage = float(found["ms"]) / 1e3, found["usage"]
    process = _PROCESS.search(line)
    wrong = ""
    if max(counts) > MAX_COUNT:
        wrong = f"a count is above {MAX_COUNT:,}"
    elif counts[1] < counts[0] or counts[3] < counts[2] or (counts[0] == 0) != (counts[1] == 0):
        wrong = "has fewer tokens than requests, or tokens without a request"
    elif seconds > LONGEST_S:
        wrong = "took more than an hour"
    elif usage is not None and float(usage) > 100:
        wrong = f"the KV cache is used to {usage}%"
    if wrong:
        problems.append(StepCsvProblem(number, "", wrong))
        return None
    return LoggedStep(
        number, found["engine"] or (process[1] if process else ""), int(found["index"]),
        counts[0], counts[1], counts[2], counts[3], seconds,
        bool(found["dummy"]), int(found["encoder"] or 0), None if usage is None else float(usage) / 100, _stamp(line),
    )  # fmt: skip


def _take_notice(line: str, said: dict[str, str]) -> None:
    """What a line outside the iterations says of the server; the first word on each counts."""
    for name, pattern in (("version", _VERSION), ("pool", _POOL), ("budget", _BUDGET), ("block", _BLOCK),
                          ("async", _ASYNC), ("prefix", _PREFIX)):  # fmt: skip
        if name not in said and (found := pattern.search(line)):
            said[name] = next(group for group in found.groups() if group)


def _stamp(line: str) -> int | None:
    found = _STAMP.search(line)
    if found is None:
        return None
    month, day, hour, minute, second = map(int, found.groups())
    return (((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second


def _whole(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    return int(digits) if digits and 0 < int(digits) <= MAX_COUNT * 64 else None


def _yes(text: str | None) -> bool | None:
    return None if text is None else text in ("True", "enabled")
