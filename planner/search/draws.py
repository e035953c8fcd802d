"""The question as it might as well have been: what a finalist is asked in again, to know how sure its answer is.

*Traffic.* The trace is one sample of the traffic that is to come, and a short one says little about it. Each draw is
another sample: blocks of consecutive requests, each request with the gap before it, drawn with replacement from the
trace, read as a circle (Kunsch 1989; Politis and Romano 1992), until there are as many requests as the trace has.
Blocks are as long as gaps or lengths have to do with each other (`traffic.blocks`), so that bursts stay whole and the
rest is mixed. What such a traffic does in the long run is the question, not what one stretch of it happens to do: a
short trace begins empty, and most stretches miss the rare busy hour, so that most of them look better than the traffic
is. So what is drawn from a short trace is `rounds` times as long (`resample`).
*Step times.* Refits say how well the law's parameters are known. How far the law is off as a whole is at most what it
is off at single points that a fit had not seen, decode and chunk steps together, without the scatter of the points'
repeats and of the refits (`Spread.law_error`): that is drawn once per draw, as one factor on all steps.
*Link.* Another speed within what is known of it.
*Engine.* Where the step times are another engine's, each draw also has a factor of its own on decode attention inside
mixed steps, evenly spread (in the logarithm) over what is stated for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from calibration.steptime import StepTimeArrays
from calibration.steptime.foreign import with_mixed_attention
from planner.search.evaluate import Bench
from planner.search.requests import Floats, Ints, Requests
from planner.search.scaling import scaled
from planner.traffic.blocks import block_length

#: A trace with fewer requests is short, and its draws are at least as long as this.
LEAST_REQUESTS: Final = 5_000


class Spread(Protocol):
    """`scale`: standard deviation of log(measured / predicted) of points that a refit had not seen. law_error: what of
    it is the law's own, or the most that it can be."""

    @property
    def scale(self) -> float: ...

    @property
    def law_error(self) -> float: ...


class StepTimes(Protocol):
    """The part of `StepTimeModel` that plans use."""

    @property
    def refits(self) -> Sized: ...

    @property
    def decode_spread(self) -> Spread: ...

    @property
    def chunk_spread(self) -> Spread: ...

    def arrays(self, refit: int | None = None) -> StepTimeArrays: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Draw:
    """One way it might as well have been: factors on step times and link speed, a refit (None: the fit itself); with
    `second_`, of a second kind of hardware, whose errors have nothing to do with the first's."""

    refit: int | None
    step_factor: float
    link_factor: float
    mixed_attention: float
    second_refit: int | None = None
    second_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Draws:
    """All of them. `block_requests`: to a block; `rounds`: see `resample`. Requests are drawn when they are needed,
    from `seed` and the draw's number: of a long trace they would fill the memory."""

    model: StepTimes
    each: Sequence[Draw]
    seed: int
    block_requests: int
    rounds: int
    second: StepTimes | None = None

    def __len__(self) -> int:
        return len(self.each)


def draws_of(
    model: StepTimes,
    requests: Requests,
    count: int,
    seed: int,
    *,
    link_sigma: float,
    step_sigma: float,
    mixed_attention: tuple[float, float] = (1.0, 1.0),
    second: StepTimes | None = None,
) -> Draws:
    """`count` draws; the same for the same seed. Refits are used in turn, in an order drawn with it."""
    random = np.random.default_rng(seed)
    available = len(model.refits)
    refits = random.permutation(available).tolist() if available else []
    # The draws come in no order, so growing factors are as good as shuffled ones.
    mixed = np.geomspace(*mixed_attention, count).tolist() if count else []
    found = []
    for number in range(count):
        steps, link = np.exp(random.standard_normal(2) * (step_sigma, link_sigma)).tolist()
        found.append(Draw(refits[number % available] if refits else None, steps, link, mixed[number]))
    if second is not None:
        found = _with_second(found, second, seed)
    rounds = -(-LEAST_REQUESTS // max(1, requests.count))
    return Draws(model, found, seed, block_of(requests), rounds, second)


def _with_second(draws: Sequence[Draw], second: StepTimes, seed: int) -> list[Draw]:
    """Random numbers of its own, so that the first kind's are what they are without it."""
    random = np.random.default_rng([seed, len(draws), 1])
    available = len(second.refits)
    refits = random.permutation(available).tolist() if available else [None]
    factors = np.exp(random.standard_normal(len(draws)) * law_error(second)).tolist()
    return [
        replace(draw, second_refit=refits[number % len(refits)], second_factor=factors[number])
        for number, draw in enumerate(draws)
    ]


def block_of(requests: Requests) -> int:
    """Requests to a block: as many as their gaps or lengths depend on each other."""
    series = (gaps_s(requests.arrival_s), requests.prompt_tokens, requests.output_tokens)
    return max(block_length(np.asarray(values, dtype=np.float64)) for values in series)


def gaps_s(arrival_s: Floats) -> Floats:
    """Before each request; the first one's is the mean, where the end of the trace meets its beginning."""
    gaps: Floats = np.diff(arrival_s, prepend=arrival_s[:1])
    if len(gaps):
        gaps[0] = (arrival_s[-1] - arrival_s[0]) / max(1, len(gaps) - 1)
    return gaps


def resample(arrival_s: Floats, block: int, rounds: int, random: np.random.Generator) -> tuple[Ints, Floats]:
    """Positions and their arrivals from 0, int64 and float64[rounds x N].

    One round is a bootstrap sample of the trace. More are a longer trace: a sample of the trace, from which blocks are
    drawn once more, with replacement, because a trace that has each of them equally often would never have a busy hour.
    The first sample has N rounds / (rounds - 1) requests, so that the luck of both together is that of N requests.
    """
    count = len(arrival_s)
    played = -(-rounds * count // block)
    if rounds == 1:
        starts = random.integers(0, count, played)
    else:
        sample = random.integers(0, count, -(-played // (rounds - 1)))
        starts = random.choice(sample, played)
    order = ((starts[:, None] + np.arange(block)).ravel()[: rounds * count] % count).astype(np.int64)
    drawn = gaps_s(arrival_s)[order]
    drawn[0] = 0.0
    return order, np.cumsum(drawn)


def drawn(bench: Bench, draws: Draws, number: int) -> Bench:
    draw = draws.each[number]
    random = np.random.default_rng([draws.seed, number])
    order, arrival_s = resample(bench.requests.arrival_s, draws.block_requests, draws.rounds, random)
    steps = scaled(draws.model.arrays(refit=draw.refit), draw.step_factor)
    second = None
    if draws.second is not None:
        other = scaled(draws.second.arrays(refit=draw.second_refit), draw.second_factor)
        second = with_mixed_attention(other, draw.mixed_attention)
    return replace(
        bench,
        requests=bench.requests.reordered(order, arrival_s),
        step_time=with_mixed_attention(steps, draw.mixed_attention),
        second_step_time=second,
        link=bench.link.scaled(draw.link_factor) if bench.link else None,
    )


def law_error(model: StepTimes) -> float:
    """The model's relative error over both kinds of steps, root mean square: how far off all of them may be at once."""
    return math.hypot(model.decode_spread.law_error, model.chunk_spread.law_error) / math.sqrt(2.0)


def error_band(model: StepTimes) -> float:
    """The model's relative error where it is worse, decode or chunk steps: what it cannot tell apart."""
    return max(model.decode_spread.scale, model.chunk_spread.scale)
