"""Is a simulated schedule what the real scheduler did, batch for batch?

A case file has one recorded run a line (gzip'd JSON lines; `knobs_of` and `replay` read the fields):
knobs, requests with the step at which each arrives, and what a real scheduler object made of them. A case is identical
when all five agree: every step's batch (vLLM's with the order of its rows, others as sets), the preempted of every
step as a set, the free blocks after every schedule where they were recorded, and each request's first-token and
last-token step.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from planner.simulation import kernel, reference
from planner.simulation.arrays import Floats, Ints
from planner.simulation.knobs import (
    FCFS,
    Knobs,
    OrcaKnobs,
    PrefillFirstKnobs,
    SarathiKnobs,
    SglangKnobs,
    TrtLlmKnobs,
    VllmKnobs,
)
from planner.simulation.outcome import Outcome, StepRecord

SIMULATORS = ("reference", "kernel")
ENGINES = ("vllm", "sglang", "trtllm", "sarathi", "orca", "vllm_v0")
ORDERED = ("vllm",)  # the order of the rows in a batch is significant
COMPARED = ("steps", "preempted", "free_blocks", "first_token_step", "done_step")
KEPT_DIFFERENCES = 10


class CaseFileError(ValueError):
    """The file is not a file of scheduler cases, or is of an engine that is not simulated."""


@dataclass(frozen=True, slots=True)
class Difference:
    case: str
    what: str
    step: int | None
    recorded: str
    simulated: str

    def __str__(self) -> str:
        where = "" if self.step is None else f" at step {self.step}"
        return f"case {self.case}: {self.what}{where}: recorded {self.recorded}, simulated {self.simulated}"


@dataclass(frozen=True, slots=True)
class CaseReport:
    """`differences`: the first one of each of the first few cases that are not identical."""

    by: str
    cases: int
    identical: int
    differences: tuple[Difference, ...]

    @property
    def sentence(self) -> str:
        return f"{self.by}: {self.cases} cases, {self.identical} identical"


def run_cases(path: Path | str, by: str) -> CaseReport:
    """Replay every case of the file by "reference" or "kernel". CaseFileError when it cannot be read."""
    if by not in SIMULATORS:
        raise ValueError(f"by must be one of {', '.join(SIMULATORS)}, not {by!r}")
    cases = identical = 0
    differences: list[Difference] = []
    for number, case in read_cases(Path(path)):
        cases += 1
        try:
            difference = compare(case, replay(case, by))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CaseFileError(f"line {number}: not a scheduler case ({error!r})") from error
        if difference is None:
            identical += 1
        elif len(differences) < KEPT_DIFFERENCES:
            differences.append(difference)
    return CaseReport(by, cases, identical, tuple(differences))


def read_cases(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The cases of a .jsonl or .jsonl.gz file with their line numbers, one by one."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    case = json.loads(line)
                    engine = case["engine"]
                except (ValueError, KeyError, TypeError) as error:
                    raise CaseFileError(f"line {number}: not a scheduler case ({error!r})") from error
                if engine not in ENGINES:
                    raise CaseFileError(
                        f"line {number}: engine {engine!r} is not simulated; {', '.join(ENGINES)} are"
                    )
                yield number, case
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CaseFileError(f"cannot read {path.name}: {error}") from error


def knobs_of(engine: str, recorded: Mapping[str, Any]) -> Knobs:
    """A case's knobs; absent ones are the recording's defaults. Only vLLM was recorded asynchronous."""
    if engine == "vllm":
        return _vllm_knobs(recorded)
    if engine == "sglang":
        return SglangKnobs(**recorded, overlap_schedule=False)
    if engine == "trtllm":
        return TrtLlmKnobs(**recorded, overlap_scheduler=False)
    if engine == "sarathi":
        return SarathiKnobs(**recorded)
    if engine == "vllm_v0":
        return PrefillFirstKnobs(**recorded)
    if engine == "orca":  # the pool never limits
        blocks_each = -(-recorded["max_model_len"] // recorded["block_size"])
        return OrcaKnobs(**recorded, num_blocks=recorded["max_num_seqs"] * blocks_each)
    raise ValueError(f"engine {engine!r} is not simulated")


def _vllm_knobs(recorded: Mapping[str, Any]) -> VllmKnobs:
    """No cap, no watermark, first come first served unless said."""
    return VllmKnobs(
        max_num_batched_tokens=recorded["max_num_batched_tokens"],
        max_num_seqs=recorded["max_num_seqs"],
        num_blocks=recorded["num_blocks"],
        block_size=recorded["block_size"],
        long_prefill_token_threshold=recorded.get("long_prefill_token_threshold", 0),
        adaptive_threshold=recorded.get("long_prefill_token_threshold_adaptive", False),
        prefill_schedule_interval=recorded.get("prefill_schedule_interval", 1),
        policy=recorded.get("policy", FCFS),
        watermark=recorded.get("watermark", 0.0),
        async_scheduling=recorded.get("async_scheduling", False),
    )


@dataclass(frozen=True, slots=True)
class Replay:
    """A simulated case; `ids`: the requests' names in the order of the outcome's arrays."""

    ids: tuple[str, ...]
    outcome: Outcome


def replay(case: Mapping[str, Any], by: str) -> Replay:
    """Simulate a case in the steps clock, by "reference" or "kernel"."""
    requests = sorted(case["requests"], key=lambda request: request["arrive"])  # stable, as the engine's list
    ids = tuple(request["id"] for request in requests)
    tie = np.empty(len(ids), dtype=np.int64)
    tie[sorted(range(len(ids)), key=lambda position: ids[position])] = np.arange(len(ids))
    arrival: Floats = np.array([request["arrive"] for request in requests], dtype=np.float64)
    simulate = reference.simulate if by == "reference" else kernel.simulate
    outcome = simulate(
        arrival,
        _column(requests, "prompt"),
        _column(requests, "out"),
        _column(requests, "priority"),
        knobs_of(case["engine"], case["knobs"]),
        clock="steps",
        record_steps=True,
        tie=tie,
    )
    return Replay(ids, outcome)


def _column(requests: list[Mapping[str, Any]], name: str) -> Ints:
    return np.array([request.get(name, 0) for request in requests], dtype=np.int64)


def compare(case: Mapping[str, Any], replayed: Replay) -> Difference | None:
    """The first difference, in the order of COMPARED, or None when the case is identical."""
    simulated = as_recorded(replayed)
    for what in COMPARED:
        recorded, ours = case[what], simulated[what]
        if recorded is None:
            continue
        if what == "preempted" or (what == "steps" and case["engine"] not in ORDERED):
            recorded, ours = [sorted(step) for step in recorded], [sorted(step) for step in ours]
        if ours != recorded:
            return _difference(str(case.get("seed", "?")), what, recorded, ours)
    return None


def as_recorded(replayed: Replay) -> dict[str, Any]:
    """The outcome in the form of the case file; preempted requests sorted by id."""
    ids, outcome = replayed.ids, replayed.outcome
    record = outcome.record
    assert record is not None  # noqa: S101  replay() asked for it
    return {
        "steps": _batches(ids, record),
        "preempted": [
            sorted(ids[request] for request in record.preempted[start:stop])
            for start, stop in _spans(record.preempted_offsets)
        ],
        "free_blocks": record.free_blocks.tolist(),
        "first_token_step": _steps_by_id(ids, outcome.first_token_s),
        "done_step": _steps_by_id(ids, outcome.done_s),
    }


def _batches(ids: tuple[str, ...], record: StepRecord) -> list[list[list[str | int]]]:
    rows: list[list[str | int]] = [
        [ids[request], "D" if decode else "P", tokens]
        for request, decode, tokens in zip(
            record.request.tolist(), record.decode.tolist(), record.tokens.tolist(), strict=True
        )
    ]
    return [rows[start:stop] for start, stop in _spans(record.offsets)]


def _spans(offsets: Ints) -> list[tuple[int, int]]:
    return list(pairwise(offsets.tolist()))


def _steps_by_id(ids: tuple[str, ...], steps: Floats) -> dict[str, int]:
    return {name: int(step) for name, step in zip(ids, steps.tolist(), strict=True) if step == step}


def _difference(case: str, what: str, recorded: Any, simulated: Any) -> Difference:
    if isinstance(recorded, dict):
        for name in sorted(recorded.keys() | simulated.keys()):
            if recorded.get(name) != simulated.get(name):
                return Difference(
                    case, f"{what} of {name}", None, str(recorded.get(name)), str(simulated.get(name))
                )
    for step, (ours, theirs) in enumerate(zip(simulated, recorded, strict=False)):
        if ours != theirs:
            return Difference(case, what, step, str(theirs), str(ours))
    return Difference(case, f"number of {what}", None, str(len(recorded)), str(len(simulated)))
