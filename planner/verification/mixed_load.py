"""The mixed-load experiment: what long prompts do to short answers that are being written.

So many streams decode; whenever each has got EVERY tokens more, a long prompt comes, whose answer is one token. Every
gap that is counted is therefore a gap of a stream. Five ways to serve it: the prompt whole, in chunks of three sizes,
and on a pool of its own, from which its KV cache is moved. Prompts that come one in EVERY gaps show in p99 when they
are whole, in p95 as well when they are cut into several chunks. Each way is predicted and then really run: by the
loop, the pools by engines of their own. Tokens, seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from calibration.experiment import Envelope
from calibration.steptime import StepTimeArrays
from calibration.transfer import TransferTable
from planner.search.requests import Requests
from planner.search.seconds import percent_text, seconds_text
from planner.simulation import kernel
from planner.simulation.cluster.deployment import Disaggregated, HandOff, Network, pool
from planner.simulation.kernel.cluster import simulate as simulate_cluster
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from planner.verification.lines import BARS, LEVEL, Line, bootstrap_interval, line_of

EVERY: Final = 32
STREAM_PROMPT: Final = 16
BLOCK_TOKENS: Final = 16
LEAST_CHUNK: Final = 16
WHOLE, POOLS = "whole", "separate pools"
GRID_PROMPTS: Final = (128, 1_024, 4_096, 16_384)
GRID_OUTPUTS: Final = (32, 256, 1_024)
GRID_STREAMS: Final = (1, 4, 16, 64, 256)
Z: Final = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0)
#: What is told of each way: gaps of the streams, and what the prompt itself pays.
TOLD: Final = (("itl", 50.0), ("itl", 95.0), ("itl", 99.0))


@dataclass(frozen=True, slots=True)
class Case:
    """`streams` answers of `output_tokens` each, and prompts of `prompt_tokens` beside them."""

    prompt_tokens: int
    output_tokens: int
    streams: int

    @property
    def prompts(self) -> int:
        return max(1, self.output_tokens // EVERY)

    def chunks(self, room_tokens: int) -> tuple[int, ...]:
        """Three chunk sizes, as far as they are steps at all: an eighth, a quarter and half of the prompt; of one whose
        half has no room in a step beside the streams, a quarter, half and all of that room."""
        half = self.prompt_tokens // 2
        largest = half if half <= room_tokens else room_tokens
        return tuple(sorted({size for size in (largest // 4, largest // 2, largest) if size >= LEAST_CHUNK}))

    @property
    def text(self) -> str:
        streams = "1 stream" if self.streams == 1 else f"{self.streams:,} streams"
        return f"prompts of {self.prompt_tokens:,} tokens beside {streams} of {self.output_tokens:,}"


@dataclass(frozen=True, slots=True)
class Way:
    """How a case is served: `chunk_tokens` 0: the prompt whole; `apart`: in a pool of its own."""

    chunk_tokens: int = 0
    apart: bool = False

    @property
    def text(self) -> str:
        if self.apart:
            return POOLS
        return f"chunks of {self.chunk_tokens:,}" if self.chunk_tokens else WHOLE

    @property
    def served_text(self) -> str:
        return self.text if self == Way() else f"in {self.text}"


def why_not(case: Case, envelope: Envelope, kv_tokens: int) -> str:
    """Why the envelope does not hold this case; empty where it does."""
    # A prompt's answer is one token, which is no token's context; a stream's last one is none either.
    longest = max(case.prompt_tokens, STREAM_PROMPT + case.output_tokens - 1)
    if longest > envelope.max_context_tokens:
        return f"contexts of {longest:,} tokens, and {envelope.max_context_tokens:,} were measured"
    if case.streams + 1 > envelope.max_batch:
        return f"{case.streams + 1:,} sequences at once, and {envelope.max_batch:,} were measured"
    needed = case.streams * (STREAM_PROMPT + case.output_tokens + BLOCK_TOKENS) + 2 * case.prompt_tokens
    if needed > kv_tokens:
        return f"{needed:,} tokens of KV, and the pool has {kv_tokens:,}"
    return ""


def ways_of(case: Case, envelope: Envelope, *, apart: bool) -> tuple[Way, ...]:
    """In the order in which they are told. Whole prompts only where such a step was measured."""
    room = envelope.max_step_tokens - case.streams
    whole = (Way(),) if case.prompt_tokens <= room else ()
    return whole + tuple(map(Way, case.chunks(room))) + ((Way(apart=True),) if apart else ())


def why_not_whole(case: Case, envelope: Envelope) -> str:
    """Why this case's prompts are not served whole; empty where they are."""
    step = case.prompt_tokens + case.streams
    if step <= envelope.max_step_tokens:
        return ""
    return f"steps of {step:,} tokens, and {envelope.max_step_tokens:,} were measured"


def grid(envelope: Envelope, kv_tokens: int) -> tuple[list[Case], list[tuple[Case, str]]]:
    """The cases of the grid that the envelope holds, and those it does not with the reason. The most streams are as
    many as leave a seat for the prompt."""
    streams = sorted({min(count, max(1, envelope.max_batch - 1)) for count in GRID_STREAMS})
    held: list[Case] = []
    left: list[tuple[Case, str]] = []
    for prompt in GRID_PROMPTS:
        for output in GRID_OUTPUTS:
            for count in streams:
                case = Case(prompt, output, count)
                reason = why_not(case, envelope, kv_tokens)
                if reason:
                    left.append((case, reason))
                else:
                    held.append(case)
    return held, left


def default_case(envelope: Envelope) -> Case:
    """Half the seats decode; the longest prompt that still fits a step beside them."""
    streams = max(1, envelope.max_batch // 2)
    prompt = min(envelope.max_step_tokens - streams, envelope.max_context_tokens - 1)
    output = min(128, envelope.max_context_tokens - STREAM_PROMPT)
    return Case(max(1, prompt), output, streams)


def knobs_of(way: Way, case: Case, envelope: Envelope, kv_tokens: int) -> VllmKnobs:
    budget = max(envelope.max_step_tokens, case.streams + 1)
    return VllmKnobs(
        max_num_batched_tokens=budget, max_num_seqs=envelope.max_batch, num_blocks=kv_tokens // BLOCK_TOKENS,
        long_prefill_token_threshold=way.chunk_tokens,
    )  # fmt: skip


def requests_of(case: Case, step_time: StepTimeArrays, envelope: Envelope, kv_tokens: int) -> Requests:
    """Streams at time 0; a prompt whenever, as predicted without prompts, each stream has got EVERY tokens more."""
    count, prompts = case.streams, case.prompts
    ones = np.ones(count, dtype=np.int64)
    alone = kernel.simulate(
        np.zeros(count), ones * STREAM_PROMPT, ones * case.output_tokens, None,
        knobs_of(Way(), case, envelope, kv_tokens), step_time,
    )  # fmt: skip
    pace_s = alone.makespan_s / case.output_tokens
    # Half a step early: one that came exactly with a step would be in it or not, by a prediction's last digit.
    arrival_s = (np.arange(prompts) + 1) * min(EVERY, case.output_tokens / 2) * pace_s - pace_s / 2
    return Requests(
        np.concatenate([np.zeros(count), arrival_s]),
        np.concatenate([ones * STREAM_PROMPT, np.full(prompts, case.prompt_tokens)]),
        np.concatenate([ones * case.output_tokens, np.ones(prompts, dtype=np.int64)]),
    )


def deployment_of(
    case: Case,
    envelope: Envelope,
    kv_tokens: int,
    step_time: StepTimeArrays,
    table: TransferTable,
    token_bytes: float,
) -> Disaggregated:
    """One replica prefills the long prompts, one decodes and prefills what is as short as a stream's prompt."""
    knobs = knobs_of(Way(apart=True), case, envelope, kv_tokens)
    return Disaggregated(
        pool(1, knobs, step_time), pool(1, knobs, step_time), HandOff.vllm(token_bytes), Network.cards(table),
        local_prefill_tokens=STREAM_PROMPT,
    )  # fmt: skip


def predict(
    way: Way,
    case: Case,
    requests: Requests,
    envelope: Envelope,
    kv_tokens: int,
    step_time: StepTimeArrays,
    table: TransferTable | None,
    token_bytes: float,
) -> Outcome:
    asked = (requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None)
    if way.apart:
        assert table is not None  # noqa: S101 - pools are asked for with their hand-off
        there = deployment_of(case, envelope, kv_tokens, step_time, table, token_bytes)
        return simulate_cluster(*asked, there).requests
    return kernel.simulate(*asked, knobs_of(way, case, envelope, kv_tokens), step_time)


@dataclass(frozen=True, slots=True)
class Served:
    """One way of one case: gaps of the streams as TOLD, and the prompts' median TTFT. `repeats` that were run."""

    case: Case
    way: Way
    gaps: int
    lines: tuple[Line, ...]
    repeats: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.case.prompt_tokens, "output_tokens": self.case.output_tokens,
            "streams": self.case.streams, "way": self.way.text, "chunk_tokens": self.way.chunk_tokens,
            "apart": self.way.apart, "gaps": self.gaps, "repeats": self.repeats,
            "lines": [line.to_dict() for line in self.lines],
        }  # fmt: skip

    def line(self, percentile: float) -> Line:
        return next(line for line in self.lines if (line.metric, line.percentile) == ("itl", percentile))


def served(
    way: Way,
    case: Case,
    predicted: Outcome,
    refits: Sequence[Outcome],
    measured: Sequence[Outcome],
    kind: str,
) -> Served:
    """`measured`: of each repeat. `kind`: "cpu" or "gpu", whose bars apply."""
    lines = [
        _line(metric, percentile, [o.percentile(metric, percentile) for o in (predicted, *refits)],
              [o.percentile(metric, percentile) for o in measured], _of_steps(measured[0], percentile, case),
              BARS[kind].get((metric, percentile)))
        for metric, percentile in TOLD
    ]  # fmt: skip
    told = [o.ttft_s()[case.streams :] for o in (predicted, *refits)]
    seen = [o.ttft_s()[case.streams :] for o in measured]
    lines.append(
        _line("ttft", 50.0, [float(np.median(each)) for each in told], [float(np.median(each)) for each in seen],
              bootstrap_interval(seen[0], 50.0, seed=0), None)
    )  # fmt: skip
    return Served(case, way, int(measured[0].gap_counts.sum()), tuple(lines), len(measured))


def _line(
    metric: str,
    percentile: float,
    predicted: Sequence[float],
    measured: Sequence[float],
    interval: tuple[float, float],
    bar: float | None,
) -> Line:
    return line_of(metric, percentile, predicted[0], predicted[1:], measured, interval, bar)


def _of_steps(measured: Outcome, percentile: float, case: Case) -> tuple[float, float]:
    """The interval of a percentile of the gaps [s], from its order statistics. The gaps that the streams have of one
    step are one draw, not as many as there are streams: so many steps count as each answer has gaps."""
    share = percentile / 100.0
    reach = Z * np.sqrt(share * (1.0 - share) / max(1, case.output_tokens - 1))
    ends = np.clip([share - reach, share + reach], 0.0, 1.0)
    low, high = (measured.percentile("itl", 100.0 * float(end)) for end in ends)
    return low, high


def sentence(found: Sequence[Served]) -> str:
    """Of the first case: what the prompts cost the streams served as they are and in the best way, and the largest
    error of all."""
    first = [each for each in found if each.case == found[0].case]
    best = min(first, key=lambda each: each.line(99.0).measured_s)
    told = f"{_p99_text(first[0])} served {first[0].way.served_text}"
    if best is first[0]:
        told += ", and no other way makes it smaller"
    else:
        told += f", and {_p99_text(best)} at best, with {best.way.text}"
    judged = [(line, each) for each in found for line in each.lines if line.bar is not None]
    line, where = max(judged, key=lambda pair: abs(pair[0].error))
    return (
        f"With {found[0].case.text} the p99 gap is {told}. The largest error is {percent_text(abs(line.error))}, at "
        f"{line.label}, {where.way.text}{'' if where.case == found[0].case else ', ' + where.case.text}."
    )


def _p99_text(each: Served) -> str:
    line = each.line(99.0)
    return f"{seconds_text(line.measured_s)} (predicted {seconds_text(line.predicted_s)})"
