"""From vLLM's logged iterations to samples: what the log lacks, and the bounds within which it is known.

A line counts requests and tokens. It does not say how long the contexts of the decodes are, what was cached before a
chunk, or how context tokens are shared among several prompts. Contexts are followed instead:
  - a decode's context grows by one each step; a prompt that completes joins the decodes with all its tokens. A prompt
    is cut only by the token budget, so in a step below the budget every prompt in it completes
  - when d decodes end, nobody says which: one list assumes the longest ended, one the shortest. Truth lies between
    their sums, and their middle is taken
  - where the log has the share of the KV pool in use, that sum is known to a block per sequence at every step
A step whose contexts are known to no better than +-MOST_DOUBT, or whose beginning the log does not have, is not
used. Decodes of a step all get the mean context: what skew costs is in the seconds, not in the shape. Steps with
several tokens per decode (speculation, or recomputing after a preemption), with images, or of a dummy rank are left
out. All of that is counted and said. Units: tokens, seconds.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

from calibration.sources.step_csv import SHORTEST_S
from calibration.sources.vllm_log import LoggedStep, VllmLog
from calibration.steptime.samples import StepSample
from calibration.steptime.shapes import Chunk, StepShape

MOST_DOUBT = 0.25
SKEW = 1.5  # of the assumed spread; 1 is exponential
GRID = 1.03  # mean contexts and prefixes within this ratio are repeats of one step
MAX_REPEATS = 200  # kept of one step
MAX_DECODES = 20_000_000
LEAST_SPAN_S = 5
FEW_SEEN, MANY_SEEN = 0.5, 0.9  # share of the wall time of busy spans that the steps' times add up to


class LogError(ValueError):
    """The log can be read but no step times can be taken from it; says why."""


@dataclass(frozen=True, slots=True)
class LogSamples:
    """`used` of `logged` iterations, as samples; `remarks` say in sentences what was lacking and how it was bounded.

    `doubt`: median and largest relative half-width of the bounds on the sum of contexts, of the steps used.
    `timed_share`: of busy wall time that the steps' times add up to; None where stamps are missing or few.
    """

    samples: list[StepSample]
    logged: int
    used: int
    left_out: dict[str, int]
    doubt: tuple[float, float]
    timed_share: float | None
    host_gap_s: float
    remarks: tuple[str, ...]


@dataclass(slots=True)
class _Followed:
    """The decodes of one engine: contexts under both assumptions, as tokens less the steps done when they joined."""

    shortest_left: list[int] = field(default_factory=list)  # the longest ended: the least sum
    longest_left: list[int] = field(default_factory=list)  # the shortest ended: the largest sum
    steps: int = 0
    unsure: int = 0  # half the width of what the sum was last bounded to by the pool's share
    known: bool = False
    open_prompt: int = 0  # tokens done of the prompt that the budget cut
    joining: list[int] = field(default_factory=list)  # prompts completed in the step before

    def sums(self) -> tuple[int, int]:
        """(least, largest) sum of the contexts before the step."""
        grown = self.steps * len(self.shortest_left)
        low = sum(self.shortest_left) + grown - self.unsure
        return max(len(self.shortest_left), low), sum(self.longest_left) + grown + self.unsure

    def forget(self) -> None:
        self.shortest_left, self.longest_left, self.joining = [], [], []
        self.known, self.open_prompt, self.unsure = False, 0, 0

    def spread_over(self, least: int, most: int, rows: int) -> None:
        """The sum lies between the two. What the next decode to end will have had is not known: bounded as if
        contexts were spread exponentially, the longest of the few having most of the tokens."""
        if not self.known:
            self.open_prompt = 0
        shares = [(-math.log(1 - (index + 0.5) / rows)) ** SKEW for index in range(rows)]
        scale, self.unsure = (least + most) / 2 / sum(shares), (most - least + 1) // 2
        self.longest_left = [round(share * scale) - self.steps for share in shares]
        self.shortest_left = list(self.longest_left)
        self.known = True

    def step_begins(self, generation_requests: int) -> None:
        """Prompts of the step before join; as many decodes as are too many have ended."""
        for tokens in self.joining:
            bisect.insort(self.shortest_left, tokens - self.steps)
            bisect.insort(self.longest_left, tokens - self.steps)
        self.joining = []
        if not generation_requests:  # all that had begun has ended: from here on everything is seen
            self.shortest_left, self.longest_left, self.unsure, self.known = [], [], 0, True
        ended = len(self.shortest_left) - generation_requests
        if ended < 0:
            self.known = False  # decodes that nobody saw begin
        elif ended:
            del self.shortest_left[len(self.shortest_left) - ended :]
            del self.longest_left[:ended]


def samples_of_log(log: VllmLog, kv_tokens: int | None = None) -> LogSamples:
    """Samples with role "fit". `kv_tokens`: the pool, default what the log says. Raises LogError."""
    pool = kv_tokens or log.kv_tokens
    budget = log.budget_tokens or max(s.context_tokens + s.generation_tokens for s in log.steps)
    engines: dict[str, list[LoggedStep]] = {}
    for step in log.steps:
        engines.setdefault(step.engine, []).append(step)
    left_out: Counter[str] = Counter()
    found: dict[StepShape, list[float]] = {}
    doubts: list[float] = []
    several = 0
    for steps in engines.values():
        for step, shape, doubt in _shapes(steps, budget, pool, log.block_tokens, left_out):
            seconds = found.setdefault(shape, [])
            if len(seconds) < MAX_REPEATS:
                seconds.append(step.seconds)
            doubts.append(doubt)
            several += step.context_requests > 1
    share, gap_s = _timed(engines.values())
    _refuse_untimed(log, share)
    if not found:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in left_out.most_common())
        raise LogError(f"none of {len(log.steps):,} iterations can be used: {reasons}")
    if sum(len(shape.decode_contexts) for shape in found) > MAX_DECODES:
        raise LogError(f"more than {MAX_DECODES:,} decode rows in all: give a shorter part of the log")
    doubts.sort()
    samples = [StepSample(shape, tuple(seconds), host_gap_s=gap_s) for shape, seconds in found.items()]
    bounds = (doubts[len(doubts) // 2], doubts[-1])
    remarks = _remarks(log, bounds, left_out, several, share, pool)
    return LogSamples(
        samples, len(log.steps), len(doubts), dict(left_out), bounds, share, gap_s, tuple(remarks)
    )


def _shapes(
    steps: list[LoggedStep], budget: int, pool: int | None, block: int, left_out: Counter[str]
) -> Iterable[tuple[LoggedStep, StepShape, float]]:
    """(step, shape, doubt of its contexts) of the usable steps of one engine."""
    state = _Followed(known=steps[0].index == 0)
    before: LoggedStep | None = None
    for step, following in zip_longest(steps, steps[1:]):
        if before is not None and step.index != before.index + 1:
            state.forget()
            state.known = step.index == 0  # a restarted server begins with nothing
        before = step
        if step.dummy or not (step.context_requests or step.generation_requests):
            left_out["dummy or empty iterations"] += 1
            continue
        state.step_begins(step.generation_requests)
        low, high = state.sums()
        known = state.known
        prefix, joining = state.open_prompt, _prompts(step, state, budget)
        # The share is read after requests that end with the step have given their blocks back.
        none_ended = following is not None and following.index == step.index + 1
        none_ended = none_ended and following.generation_requests >= step.generation_requests + len(joining)
        plain = step.generation_tokens == step.generation_requests
        if step.usage is not None and pool and plain and none_ended:
            low, high, cached = _by_usage(step, pool, block, state, (low, high), prefix)
            known, found_cached = state.known, cached - prefix
            if joining and found_cached:
                joining[0] += found_cached
            elif found_cached:
                state.open_prompt += found_cached
            prefix = cached
        state.steps += 1
        state.joining = joining
        doubt = (high - low) / (high + low) if high + low else 0.0
        if step.generation_tokens != step.generation_requests:
            left_out["with several tokens per decode (speculation, or recomputing after a preemption)"] += 1
            state.forget()
        elif step.encoder_inputs:
            left_out["with encoder inputs"] += 1
        elif not known:
            left_out["whose requests began before the log, or in a gap of it"] += 1
        elif doubt > MOST_DOUBT:
            left_out[f"whose contexts are known to no better than ±{MOST_DOUBT:.0%}"] += 1
        elif step.seconds < SHORTEST_S:
            left_out["with no time"] += 1
        else:
            yield step, _shape(step, (low + high) / 2, prefix, budget), doubt


def _prompts(step: LoggedStep, state: _Followed, budget: int) -> list[int]:
    """Prompts that complete in the step, in tokens; moves what the budget cuts to `state.open_prompt`."""
    if not step.context_requests:
        return []
    each, rest = divmod(step.context_tokens, step.context_requests)
    shares = [each + (i < rest) for i in range(step.context_requests)]
    shares[0] += state.open_prompt
    state.open_prompt = 0
    if step.context_tokens + step.generation_tokens >= budget:
        state.open_prompt = shares.pop()
    return shares


def _by_usage(
    step: LoggedStep, pool: int, block: int, state: _Followed, followed: tuple[int, int], prefix: int
) -> tuple[int, int, int]:
    """(least, largest) sum of decode contexts and the chunk's prefix, with the share of the pool in use after the step.

    Every sequence holds whole blocks, up to block - 1 tokens more than it has; the share is rounded to 0.1 %. Of a
    step without a chunk it bounds the contexts, also of decodes that began before the log. Of one with a chunk it
    shows what else was there before the chunk: a prefix that the cache knew.
    """
    used, rounding = (step.usage or 0.0) * pool, 0.0005 * pool
    low, high = followed
    rows = step.generation_requests
    if not step.context_requests:
        least, most = (
            max(rows, round(used - rounding - rows * block)),
            max(rows, round(used + rounding - rows)),
        )
        if state.known and least <= high and low <= most:
            least, most = max(low, least), min(high, most)
            if high - low <= most - least:
                return least, most, prefix
        state.spread_over(least, most, rows)
        return least, most, prefix
    if state.known and step.context_requests == 1:
        slack = (rows + 1) * (block - 1) / 2
        there = used - (low + high) / 2 - step.context_tokens - slack
        doubt = rounding + (high - low) / 2 + (rows + 1) * block / 2
        if there - doubt > prefix:
            return low, high, round(there)
    return low, high, prefix


def _shape(step: LoggedStep, contexts: float, prefix: int, budget: int) -> StepShape:
    rows, prompts = step.generation_requests, step.context_requests
    mean = _on_grid(contexts / rows) if rows else 0
    chunks = []
    if prompts:
        each, rest = divmod(step.context_tokens, prompts)
        cut = step.context_tokens + step.generation_tokens >= budget
        for index in range(prompts):
            chunks.append(
                Chunk(
                    each + (index < rest),
                    _on_grid(prefix) if index == 0 else 0,
                    not (cut and index == prompts - 1),
                )
            )
    return StepShape((mean,) * rows, tuple(chunks))


def _on_grid(tokens: float) -> int:
    """The nearest number of tokens on a grid of ratio GRID, so that alike steps become repeats of one."""
    if tokens < 1:
        return 0
    return round(GRID ** round(math.log(tokens) / math.log(GRID)))


def _timed(engines: Iterable[list[LoggedStep]]) -> tuple[float | None, float]:
    """Of busy spans: the share of wall time in the steps' times, and the seconds between steps that are not in them.

    A span is a run of steps each with decodes: those were there before, so the engine never waited for requests.
    """
    wall = timed = 0.0
    steps_in_spans = 0
    for steps in engines:
        start = 0
        for end in range(1, len(steps) + 1):
            follows = end < len(steps) and steps[end].index == steps[end - 1].index + 1
            if follows and steps[end].generation_requests:
                continue
            first, last = steps[start].stamp_s, steps[end - 1].stamp_s
            if first is not None and last is not None and last - first >= LEAST_SPAN_S:
                wall += last - first
                timed += sum(step.seconds for step in steps[start + 1 : end])
                steps_in_spans += end - 1 - start
            start = end
    if not wall:
        return None, 0.0
    return timed / wall, max(0.0, wall - timed) / max(1, steps_in_spans)


def _refuse_untimed(log: VllmLog, share: float | None) -> None:
    if share is not None and share < FEW_SEEN:
        raise LogError(
            f"the iterations' times add up to {share:.0%} of the wall time during which the engine was busy: with "
            "asynchronous scheduling the timer only sees the wait for a result. Log a run with --no-async-scheduling"
        )
    if share is None and log.asynchronous:
        raise LogError(
            "the log says that scheduling is asynchronous, where the timer only sees the wait for a result, and its "
            f"stamps do not span {LEAST_SPAN_S} busy seconds to check it. Log a run with --no-async-scheduling"
        )


def _remarks(
    log: VllmLog,
    doubt: tuple[float, float],
    left_out: Counter[str],
    several: int,
    share: float | None,
    pool: int | None,
) -> list[str]:
    usage = sum(step.usage is not None for step in log.steps)
    how = "the share of the KV pool in use" if usage and pool else "following each request from its prompt"
    found = [
        f"The log does not say how long contexts are. They were bounded by {how}: the sum of a step's contexts is "
        f"known to ±{doubt[0]:.1%} (median; at worst ±{doubt[1]:.1%} in the steps used). All decodes of a step get "
        "the mean context, so what skew costs is not told apart."
    ]
    if several:
        found.append(f"{several:,} steps had several prompts; their context tokens were shared equally.")
    if log.prefix_caching is not False and not usage:
        found.append(
            "Whether prefixes were found in the cache is not logged: cached prompt tokens count as contexts of 0. Log "
            "a run with --no-enable-prefix-caching to be sure."
        )
    if left_out:
        found.append(
            "Not used: "
            + "; ".join(f"{count:,} iterations {reason}" for reason, count in left_out.most_common())
            + "."
        )
    if share is None:
        found.append("Whether the times are whole step times could not be checked against the log's stamps.")
    elif share < MANY_SEEN:
        found.append(
            f"The iterations' times add up to {share:.0%} of busy wall time: the rest is host time between steps (or "
            "asynchronous scheduling), kept as a host gap per step and not part of the fit."
        )
    return found
