"""The work behind the mixed-load experiment: every way of every case predicted and run, and one report. Where an engine
ends under it, or it is asked to stop, the ways that were done are the report, with the one in which it broke off."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.architecture import Architecture
from calibration.engine.client import EngineClient, EngineError
from calibration.experiment import Envelope
from calibration.jobs import JobRefused, JobRun
from calibration.pipeline import device_kind
from calibration.services import step_time_model
from calibration.steptime import StepTimeModel
from calibration.transfer import TransferTable
from planner.models import Verification
from planner.search.confidence import pick_refits
from planner.search.requests import Requests
from planner.simulation.outcome import Outcome
from planner.two_pools_work import BLOCK_TOKENS, SLACK_BLOCKS
from planner.verification import mixed_load
from planner.verification.loop import Replayed, Stopped, replay
from planner.verification.mixed_load import Case, Served, Way
from planner.verification.partial import (
    ASKED,
    BrokenWay,
    partial_mixed_load,
    served_by_one,
    served_by_pools,
    vanished_mixed_load,
)
from planner.verification.partial import Served as ServedSoFar
from planner.verification.report import MOSTLY, QUIETER
from planner.verification.sequences import Blocks, Sequences
from planner.verification.two_pools import TwoPools, measure_hand_off, replay_two_pools
from planner.verification_engines import EngineWish, engines
from planner.verification_results import broken_off, refuse_the_endless, store
from planner.verifications import why_not_mixed_load

REFITS = 8
WHICH_STEPS = (
    "Check the device for drift, or replay the plan's own traffic: its report says which steps were mispriced, and can "
    "have them measured anew."
)


class _Ended(Exception):
    """A run broke off; what it had done by then, and why in words."""

    def __init__(self, so_far: ServedSoFar, words: str) -> None:
        super().__init__(words)
        self.so_far, self.words = so_far, words


@dataclass(frozen=True, slots=True)
class _Bench:
    """What all runs share. `found`: one engine, or two, and how KV is handed from one to the other."""

    row: Verification
    run: JobRun
    model: StepTimeModel
    envelope: Envelope
    kv_tokens: int
    architecture: Architecture
    found: Sequence[EngineClient]
    table: TransferTable | None
    kind: str
    contended: list[NDArray[np.bool_]] = field(default_factory=list)  # of every run, by step

    def note(self, replayed: Replayed) -> Outcome:
        self.contended.append(replayed.contended)
        return replayed.outcome

    @property
    def token_bytes(self) -> float:
        return float(self.architecture.kv_bytes_per_token())

    def predict(self, way: Way, case: Case, requests: Requests, refit: int | None = None) -> Outcome:
        return mixed_load.predict(
            way, case, requests, self.envelope, self.kv_tokens, self.model.arrays(refit=refit), self.table,
            self.token_bytes,
        )  # fmt: skip


def run_mixed_load(row: Verification, run: JobRun) -> None:
    """Serves the row's case (and the grid, if it is asked for) in every way and writes the report."""
    if reason := why_not_mixed_load(row.plan):
        raise JobRefused(reason)
    calibration = row.calibration
    envelope = Envelope.from_dict(calibration.envelope or {})
    kv_tokens = int(calibration.kv_tokens or 0)
    cases, left = cases_of(row.options, envelope, kv_tokens)
    apart = bool(row.options.get("apart", True)) and calibration.tensor_parallel == 1
    architecture = Architecture.from_dict(calibration.architecture)
    with engines(calibration, run, _wish(cases, architecture, row.seed, kv_tokens, apart=apart)) as found:
        table = None
        if apart:
            run.progress(0, 1, "Measuring hand-offs")
            table = measure_hand_off(
                found[0], found[1], kv_tokens // BLOCK_TOKENS, BLOCK_TOKENS,
                float(architecture.kv_bytes_per_token()), row.seed,
            )  # fmt: skip
        bench = _Bench(
            row, run, step_time_model(calibration), envelope, kv_tokens, architecture, found, table,
            device_kind(calibration.device),
        )  # fmt: skip

        def facts(done: Sequence[Served]) -> dict[str, Any]:
            return _facts(row, done, left, table, bench.contended)

        def keep(done: Sequence[Served], so_far: dict[str, Any]) -> None:
            """What stands there should the worker vanish; until then nothing is said of it."""
            store(row, facts(done) | so_far, holds=None, sentence="")

        done, broken = _served(bench, cases, keep, apart=apart)
        if broken is not None:
            raise broken_off(row, facts(done) | broken)
    _write(row, run, done, facts(done))


def cases_of(options: dict[str, Any], envelope: Envelope, kv_tokens: int) -> tuple[list[Case], list[str]]:
    """The row's own case first, then the grid's, if it is asked for; and what the envelope does not hold, in words."""
    own = Case(options["prompt_tokens"], options["output_tokens"], options["streams"])
    held, left = mixed_load.grid(envelope, kv_tokens) if options.get("grid") else ([], [])
    cases = [own, *(case for case in held if case != own)]
    not_whole = [(case, mixed_load.why_not_whole(case, envelope)) for case in cases]
    left_out = [f"{case.text}, {mixed_load.WHOLE}: {reason}" for case, reason in not_whole if reason]
    return cases, left_out + [f"{case.text}: {reason}" for case, reason in left]


def _wish(
    cases: Sequence[Case], architecture: Architecture, seed: int, kv_tokens: int, *, apart: bool
) -> EngineWish:
    longest = max(
        max(case.prompt_tokens + 1, mixed_load.STREAM_PROMPT + case.output_tokens) for case in cases
    )
    blocks = max(-(-longest // BLOCK_TOKENS) + 1, SLACK_BLOCKS)
    shared = blocks * BLOCK_TOKENS * architecture.kv_bytes_per_token(4) if apart else 0
    slack = (SLACK_BLOCKS + max(case.streams for case in cases)) * BLOCK_TOKENS
    return EngineWish(architecture, longest, seed, 2 if apart else 1, kv_tokens + slack, shared)


@dataclass(slots=True)
class _Pace:
    """How far the experiment is, in seconds of steps as predicted: what is still to come is told by what is done."""

    run: JobRun
    total_s: float
    began: float = field(default_factory=time.monotonic)
    words: str = ""
    done_s: float = 0.0
    expected_s: float = 0.0  # of the way it is at, of which `within_s` have passed
    within_s: float = 0.0

    def begin(self, words: str, expected_s: float) -> None:
        self.done_s += self.expected_s
        self.words, self.expected_s, self.within_s = words, expected_s, 0.0
        self.step(0.0)

    def step(self, seconds: float) -> None:
        self.within_s = min(self.within_s + seconds, self.expected_s)
        done_s = self.done_s + self.within_s
        left_s = (time.monotonic() - self.began) / done_s * (self.total_s - done_s) if done_s else None
        self.run.progress(int(1e3 * done_s), int(1e3 * self.total_s) + 1, self.words, left_s)


def _served(
    bench: _Bench,
    cases: Sequence[Case],
    keep: Callable[[Sequence[Served], dict[str, Any]], None],
    *,
    apart: bool,
) -> tuple[list[Served], dict[str, Any] | None]:
    """Every way of every case, in order, and what is told where it broke off before all were done. `keep` is given the
    ways that are done as they come, with what is to be told if nothing follows. Refused beforehand if it would take
    too long."""
    bench.run.progress(0, 1, "Predicting")
    asked = [
        (case, way, mixed_load.requests_of(case, bench.model.arrays(), bench.envelope, bench.kv_tokens))
        for case in cases
        for way in mixed_load.ways_of(case, bench.envelope, apart=apart)
    ]
    predicted = [bench.predict(way, case, requests) for case, way, requests in asked]
    total_s = sum(outcome.busy_s for outcome in predicted) * bench.row.replays
    refuse_the_endless(total_s)
    refits = pick_refits(bench.model, REFITS, bench.row.seed)
    found: list[Served] = []
    pace = _Pace(bench.run, total_s)
    for at, ((case, way, requests), expected) in enumerate(zip(asked, predicted, strict=True)):
        pace.begin(f"{way.text}: {case.text}", expected.busy_s * bench.row.replays)
        others = [bench.predict(way, case, requests, refit) for refit in refits]
        measured: list[Outcome] = []
        broken = None
        try:
            for number in range(bench.row.replays):
                measured.append(_run(bench, way, case, requests, number, pace.step))
        except _Ended as ended:
            where = BrokenWay(way.text, case.text, at, len(asked), len(measured), bench.row.replays)
            broken = partial_mixed_load(ended.so_far, requests.count, where, ended.words)
        if measured:
            found.append(mixed_load.served(way, case, expected, others, measured, bench.kind))
        if broken is not None:
            return found, broken
        if at + 1 < len(asked):
            case, way, requests = asked[at + 1]
            where = BrokenWay(way.text, case.text, at + 1, len(asked), 0, bench.row.replays)
            keep(found, vanished_mixed_load(requests.count, where))
    return found, None


def _run(
    bench: _Bench, way: Way, case: Case, requests: Requests, number: int, on_seconds: Callable[[float], None]
) -> Outcome:
    """The way run once; `on_seconds` is told of every step's. Raises Stopped, _Ended."""
    seed, gap = bench.row.seed + 1_000_003 * number, bench.kind == "gpu"
    if not way.apart:
        knobs = mixed_load.knobs_of(way, case, bench.envelope, bench.kv_tokens)
        steps_s: list[float] = []

        def noted(tokens: int, seconds: float) -> None:
            steps_s.append(seconds)
            on_seconds(seconds)

        try:
            return bench.note(replay(
                bench.found[-1], requests, knobs, bench.model.arrays(), seed=seed, with_host_gap=gap,
                on_step=noted, should_stop=bench.run.should_stop,
            ))  # fmt: skip
        except (Stopped, EngineError) as ended:
            so_far = served_by_one(requests, knobs, bench.model.arrays(), steps_s)
            words = ASKED if isinstance(ended, Stopped) else f"the engine ended. {ended}"
            raise _Ended(so_far, words) from ended
    blocks = bench.kv_tokens // BLOCK_TOKENS + SLACK_BLOCKS + case.streams
    assert bench.table is not None  # noqa: S101 - pools are run with their hand-off
    drive = TwoPools(
        bench.found, [Blocks.of(blocks, BLOCK_TOKENS, seed + i) for i in range(2)],
        Sequences(requests.prompt_tokens.tolist(), bench.architecture.vocab_size, seed), bench.token_bytes,
        with_host_gap=gap, on_time=lambda tokens, seconds: on_seconds(seconds), should_stop=bench.run.should_stop,
    )  # fmt: skip
    there = mixed_load.deployment_of(
        case, bench.envelope, bench.kv_tokens, bench.model.arrays(), bench.table, bench.token_bytes
    )
    try:
        return bench.note(replay_two_pools(drive, requests, there)[0])
    except (Stopped, EngineError) as ended:
        who = "decode" if drive.at else "prefill"
        words = ASKED if isinstance(ended, Stopped) else f"the {who} engine ended. {ended}"
        raise _Ended(served_by_pools(drive, 1), words) from ended


def _facts(
    row: Verification,
    found: Sequence[Served],
    left: Sequence[str],
    table: TransferTable | None,
    contended: Sequence[NDArray[np.bool_]],
) -> dict[str, Any]:
    """What is stored of the ways that were done, whether or not they are all."""
    return {
        "lines": [], "busy_bias": None, "requests": sum(each.case.streams + each.case.prompts for each in found),
        "replays": row.replays, "contended_share": float(np.concatenate(contended).mean()) if contended else None,
        "served": [each.to_dict() for each in found],
        "left_out": list(left),
        "over": table.label if table else "",
    }  # fmt: skip


def _write(row: Verification, run: JobRun, found: Sequence[Served], facts: dict[str, Any]) -> None:
    sentence = mixed_load.sentence(found)
    holds = all(line.holds for each in found for line in each.lines)
    advice = [] if holds else [WHICH_STEPS]
    advice += [QUIETER] if facts["contended_share"] > MOSTLY else []
    result = facts | {"sentence": sentence, "advice": advice, "holds": holds}
    store(row, result, holds=holds, sentence=sentence)
    run.write_log(sentence)
