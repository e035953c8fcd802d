"""What a verification that broke off, or was asked to stop, had done: counts, and the figures of the requests that were
finished by then.

Nothing is judged by it. The requests that finish first are not like the others (their answers are short), so beside
each percentile stands what was predicted of the very same requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.steptime import StepTimeArrays, step_seconds
from planner.search.requests import Requests
from planner.simulation import reference
from planner.simulation.knobs import Knobs
from planner.simulation.outcome import Outcome
from planner.simulation.reference_requests import Row
from planner.verification.lines import PERCENTILES, bootstrap_interval, line_of
from planner.verification.measured import measure
from planner.verification.stream import Answer
from planner.verification.two_pools import TwoPools

Floats = NDArray[np.float64]
LEAST: Final = 2  # finished requests, for a percentile
ASKED: Final = "it was asked to stop"
VANISHED: Final = "the worker that ran it stopped answering"
UNENDED: Final = ("stopped", "not sent")  # of answers: those that the stop cut short (load.py)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Until it broke off: the requests that were `finished` (int64[F], their positions, rising), when each had its
    first and last token (float64[F], seconds), and how many steps had been run. Of two pools `prefill_steps` and
    `decode_steps` are theirs; of one engine those with and without prefill, and `hand_offs` is None."""

    finished: NDArray[np.int64]
    first_token_s: Floats
    last_token_s: Floats
    prefill_steps: int
    decode_steps: int
    hand_offs: int | None = None


def served_by_pools(drive: TwoPools, prefill_replicas: int) -> Served:
    """What two pools' engines had done."""
    legs = {i: leg for i, leg in drive.legs.items() if leg.finished}
    finished = sorted(legs)
    prefill = sum(replica < prefill_replicas for replica in drive.replicas)
    return Served(
        np.array(finished, dtype=np.int64),
        np.array([legs[i].first_token_s for i in finished]),
        np.array([legs[i].last_token_s for i in finished]),
        prefill,
        len(drive.replicas) - prefill,
        len(drive.moved),
    )


def served_by_one(
    requests: Requests, knobs: Knobs, step_time: StepTimeArrays, steps_s: Sequence[float]
) -> Served:
    """What one engine had done whose steps had taken `steps_s` [s].

    The schedule is a function of the steps' times: brought back to where it was by those that ran, and on from there by
    the law's, it says which requests had ended by the end of the last step that ran. What follows has no part in that.
    """
    known = iter(steps_s)

    def measure(rows: list[Row]) -> float:
        seconds = next(known, None)
        return step_seconds(step_time, *reference.features(rows))[0] if seconds is None else seconds

    outcome = reference.simulate(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, requests.priority, knobs, step_time,
        max_tokens=requests.max_tokens, measure=measure, record_steps=True,
    )  # fmt: skip
    record = outcome.record
    assert record is not None  # noqa: S101 - it was asked for
    ran = np.flatnonzero(np.diff(record.offsets))[: len(steps_s)]  # an empty schedule is no step
    broke_off_s = float(record.end_s[ran[-1]]) if len(ran) else -np.inf
    with_prefill = sum(not record.decode[record.offsets[k] : record.offsets[k + 1]].all() for k in ran)
    finished = np.flatnonzero(outcome.done_s <= broke_off_s)
    return Served(
        finished, outcome.first_token_s[finished], outcome.done_s[finished], with_prefill, len(ran) - with_prefill
    )  # fmt: skip


def partial_report(
    served: Served, predicted: Outcome, words: str, seed: int = 0, which: str = "The replay"
) -> dict[str, Any]:
    """The report of what had been `served` until it broke off for the reason in `words` (ASKED: was stopped); `which`:
    of several."""
    finished, of = served.finished, len(predicted.arrival_s)
    sentence = _sentence(which, f"after {_steps_text(served)}", len(finished), of, words)
    lines = (
        _lines(predicted, finished, served.first_token_s, served.last_token_s, seed)
        if len(finished) >= LEAST
        else []
    )
    return {
        "partial": _counts(served, of, words), "lines": lines,
        "busy_bias": None, "requests": of, "sentence": sentence, "holds": False,
        "advice": ["Run it again: it goes on from the times it had."],
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BrokenWay:
    """The way of the mixed-load experiment in which it broke off: number `at` (from 0) of `ways`, in its repeat
    `repeat` (from 0) of `repeats`. `way` and `case` in words."""

    way: str
    case: str
    at: int
    ways: int
    repeat: int
    repeats: int


def partial_mixed_load(served: Served, of: int, broken: BrokenWay, words: str) -> dict[str, Any]:
    """What is told of a mixed-load experiment that broke off for the reason in `words` (ASKED: was stopped), beside the
    ways that were done: `served` of the `of` requests of the one that was not."""
    again = f", repeat {broken.repeat + 1} of {broken.repeats}" if broken.repeats > 1 else ""
    where = f"in way {broken.at + 1:,} of {broken.ways:,} ({broken.way}, {broken.case}{again}) after"
    sentence = _sentence("The experiment", f"{where} {_steps_text(served)}", len(served.finished), of, words)
    kept = "The ways that were done are kept; " if broken.at + broken.repeat else ""
    return {
        "partial": _counts(served, of, words) | _told(broken), "lines": [], "busy_bias": None, "sentence": sentence,
        "holds": False, "advice": [f"{kept}run again, the experiment begins anew.".capitalize()],
    }  # fmt: skip


def vanished_mixed_load(of: int, broken: BrokenWay) -> dict[str, Any]:
    """What is told of an experiment whose worker vanished in the way `broken`: how far into it, nobody knows."""
    sentence = f"The experiment broke off after {broken.at:,} of {broken.ways:,} ways: {VANISHED}."
    partial = {"finished": 0, "of": of, "steps": None, "hand_offs": None, "ended": VANISHED}
    return {
        "partial": partial | _told(broken), "lines": [], "busy_bias": None, "sentence": sentence, "holds": False,
        "advice": ["The ways that were done are kept; run again, the experiment begins anew."],
    }  # fmt: skip


def _told(broken: BrokenWay) -> dict[str, Any]:
    return {
        "way": broken.way, "case": broken.case, "ways_done": broken.at, "ways": broken.ways,
        "repeats_done": broken.repeat,
    }  # fmt: skip


def partial_endpoint(
    answers: Sequence[Answer], predicted: Outcome, places: NDArray[np.int64], seed: int = 0
) -> dict[str, Any]:
    """The report of a running server's run that was asked to stop: of the requests that had ended by then, beside what
    was predicted of the very same ones. `answers`: of all requests, in their order; `places`: int64[requests], where
    each stands in `predicted`."""
    ended = [answer for answer in answers if answer.error not in UNENDED]
    answered = [answer for answer in ended if answer.ok]
    good = places[[answer.index for answer in answered]] if answered else np.empty(0, dtype=np.int64)
    first, last = (
        predicted.arrival_s[good] + [answer.chunk_s[at] - answer.due_s for answer in answered]
        for at in (0, -1)
    )
    failed = len(ended) - len(good)
    more = f", and {failed:,} had failed" if failed else ""
    sentence = f"The run was stopped when {len(good):,} of {len(answers):,} requests were answered{more}."
    return {
        "partial": {"finished": len(good), "of": len(answers), "steps": None, "hand_offs": None, "ended": ASKED},
        "lines": _lines(predicted, good, first, last, seed) if len(good) >= LEAST else [],
        "busy_bias": None, "requests": len(answers), "failed": failed,
        "measured": measure(ended or answers).to_dict(), "sentence": sentence, "holds": False,
        "advice": ["Run again, it begins anew: a server's answers are of one run."],
    }  # fmt: skip


def _sentence(what: str, when: str, finished: int, of: int, words: str) -> str:
    told = f"{when}, with {finished:,} of {of:,} requests finished"
    return f"{what} was stopped {told}." if words == ASKED else f"{what} broke off {told}: {words}"


def _counts(served: Served, of: int, words: str) -> dict[str, Any]:
    return {
        "finished": len(served.finished), "of": of,
        "steps": {"prefill": served.prefill_steps, "decode": served.decode_steps},
        "hand_offs": served.hand_offs, "ended": words,
    }  # fmt: skip


def _steps_text(served: Served) -> str:
    prefill, decode = served.prefill_steps, served.decode_steps
    if served.hand_offs is None:
        return f"{prefill + decode:,} steps ({prefill:,} with prefill)"
    return f"{prefill:,} prefill and {decode:,} decode steps"


def _lines(
    predicted: Outcome, finished: NDArray[np.int64], first: Floats, last: Floats, seed: int
) -> list[dict[str, Any]]:
    arrival, outputs = predicted.arrival_s[finished], predicted.output_tokens[finished]
    pairs: Mapping[str, tuple[Floats, Floats]] = {
        "ttft": (predicted.first_token_s[finished] - arrival, first - arrival),
        "e2e": (predicted.done_s[finished] - arrival, last - arrival),
    }
    several = outputs >= 2
    gaps = np.maximum(outputs[several] - 1, 1)
    spans = predicted.done_s[finished] - predicted.first_token_s[finished]
    pairs = {**pairs, "tpot": (spans[several] / gaps, (last - first)[several] / gaps)}
    found = []
    for metric, (expected, measured) in pairs.items():
        if len(measured) < LEAST:
            continue
        for percentile in PERCENTILES:
            line = line_of(
                metric, percentile, float(np.percentile(expected, percentile)), [],
                [float(np.percentile(measured, percentile))], bootstrap_interval(measured, percentile, seed), None,
            )  # fmt: skip
            found.append(line.to_dict())
    return found
