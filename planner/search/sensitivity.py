"""What the answer is most sensitive to: the chosen deployment with one input changed at a time, ranked by harm.

Harm is how much of the worst margin (share of a limit that is left) a change takes away; a change that saturates the
deployment stands first. Changes: the rate, its burstiness, prompt and output lengths, prompts found in the prefix
cache, the link's speed, step times by the error of the law, and one replica lost for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from planner.search.breaking import failing_of
from planner.search.combinations import Candidate, Status
from planner.search.crew import CHANGE, Crew
from planner.search.evaluate import Bench, judge
from planner.search.requests import Floats, Ints, Requests
from planner.search.scaling import scaled
from planner.simulation.knobs import Knobs, VllmKnobs
from planner.simulation.prefix import PrefixBlocks

BY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`what` changed and by how much, in words; `worst_margin` then (None: saturated); `harm`: what the change takes
    from the worst margin (None: saturated); `fails`: keys of the objectives that fail, the worst first."""

    what: str
    change: str
    status: Status
    worst_margin: float | None
    harm: float | None
    fails: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Change:
    """`make`: the bench and the candidate with it."""

    what: str
    by: str
    make: Callable[[], tuple[Bench, Candidate]]


def sensitivities(
    bench: Bench, crew: Crew, candidate: Candidate, own_margin: float, step_sigma: float, longest: int
) -> tuple[Sensitivity, ...]:
    """Ranked, the most harmful first. `longest`: tokens of prompt and output that a request may have.

    Raises Stopped when the caller wants to stop.
    """
    made = changes(bench, candidate, step_sigma, longest)
    found = []
    evaluations = crew.under(candidate, CHANGE, list(range(len(made))))
    for change, evaluation in zip(made, evaluations, strict=True):
        status, _ = judge(evaluation, bench.objectives)
        if evaluation.saturated:
            found.append(Sensitivity(change.what, change.by, status, None, None, ("saturated",)))
            continue
        margin = evaluation.worst_margin(bench.objectives)
        fails = failing_of(bench.objectives, evaluation.values_s)
        found.append(Sensitivity(change.what, change.by, status, margin, own_margin - margin, fails))
    found += [
        Sensitivity("one replica lost", of, "saturated", None, None, ("saturated",))
        for of in _only(candidate)
    ]
    return tuple(sorted(found, key=lambda s: (s.harm is not None, -(s.harm or 0.0), s.what, s.change)))


def changes(bench: Bench, candidate: Candidate, step_sigma: float, longest: int) -> list[Change]:
    """Everything that is changed, in a fixed order."""
    requests = bench.requests
    up, down = f"+{100 * BY:.0f} %", f"-{100 * BY:.0f} %"

    def serving(what: str, by: str, make: Callable[[], Requests]) -> Change:
        return Change(what, by, lambda: (replace(bench, requests=make()), candidate))

    def longer(prompt: float, output: float) -> Callable[[], Requests]:
        return lambda: _longer(requests, prompt, output, longest)

    def faster(factor: float) -> Callable[[], Requests]:
        return lambda: requests.faster(factor)

    def bursts(factor: float) -> Callable[[], Requests]:
        return lambda: replace(requests, arrival_s=burstier(requests.arrival_s, factor))

    found = [
        serving("rate", up, faster(1.0 + BY)),
        serving("rate", down, faster(1.0 - BY)),
        serving("burstiness", "CV of the gaps up by a half", bursts(1.5)),
        serving("burstiness", "CV of the gaps halved", bursts(0.5)),
        serving("prompt length", up, longer(1.0 + BY, 1.0)),
        serving("prompt length", down, longer(1.0 - BY, 1.0)),
        serving("output length", up, longer(1.0, 1.0 + BY)),
        serving("output length", down, longer(1.0, 1.0 - BY)),
    ]
    if bench.hit_share:
        found.append(Change("prefix hits", "none", lambda: (replace(bench, hit_share=0.0), candidate)))
    if requests.prefix is not None:
        found.append(serving("prefix hits", "none", lambda: replace(requests, prefix=None)))
    caching = _caching(candidate)
    if caching is not None and not bench.hit_share and requests.prefix is None:
        by = f"{up} of all prompt tokens"
        found.append(Change("prefix hits", by, lambda: (replace(bench, hit_share=BY), caching)))
    return [*found, *_speeds(bench, candidate, step_sigma), *_losses(bench, candidate)]


def _caching(candidate: Candidate) -> Candidate | None:
    """The same with its prefix cache on; None of an engine for which hits cannot be assumed."""

    def on(knobs: Knobs) -> Knobs | None:
        return replace(knobs, prefix_caching=True) if isinstance(knobs, VllmKnobs) else None

    own = on(candidate.knobs)
    if candidate.pools is None:
        return None if own is None else replace(candidate, knobs=own)
    prefill = on(candidate.pools.prefill)
    if own is None or prefill is None:
        return None
    return replace(candidate, knobs=own, pools=replace(candidate.pools, prefill=prefill, decode=own))


def _speeds(bench: Bench, candidate: Candidate, step_sigma: float) -> Iterator[Change]:
    def linked(factor: float) -> Callable[[], tuple[Bench, Candidate]]:
        return lambda: (replace(bench, link=bench.link and bench.link.scaled(factor)), candidate)

    def stepping(factor: float) -> Callable[[], tuple[Bench, Candidate]]:
        return lambda: (bench.with_steps(lambda steps: scaled(steps, factor)), candidate)

    if candidate.pools and bench.link:
        yield Change("link speed", "half", linked(0.5))
        yield Change("link speed", "double", linked(2.0))
    for by, factor in (("+1 sigma", float(np.exp(step_sigma))), ("-1 sigma", float(np.exp(-step_sigma)))):
        yield Change("step times", f"{by} ({100 * (factor - 1):+.2g} %)", stepping(factor))


def _only(candidate: Candidate) -> Iterator[str]:
    """Pools of one replica: without it nothing is served, which needs no simulation."""
    if candidate.pools is None:
        if candidate.replicas == 1:
            yield "the only one"
        return
    if candidate.prefill_replicas == 1:
        yield "the only one of the prefill pool"
    if candidate.decode_replicas == 1:
        yield "the only one of the decode pool"


def _losses(bench: Bench, candidate: Candidate) -> Iterator[Change]:
    if candidate.pools is None:
        if candidate.replicas > 1:
            one = replace(candidate, replicas=candidate.replicas - 1)
            yield Change("one replica lost", "", lambda: (bench, one))
        return
    fewer = replace(candidate, replicas=candidate.replicas - 1)
    if candidate.prefill_replicas > 1:
        lost = replace(fewer, prefill_replicas=candidate.prefill_replicas - 1)
        yield Change("one replica lost", "of the prefill pool", lambda: (bench, lost))
    if candidate.decode_replicas > 1:
        yield Change("one replica lost", "of the decode pool", lambda: (bench, fewer))


def burstier(arrival_s: Floats, factor: float) -> Floats:
    """The same rate and order of gaps, with (nearly) `factor` times the CV: each gap becomes a power of itself, the
    power found by bisection. Gaps that are all alike stay so."""
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or gaps.max() <= 0.0 or gaps.std() == 0.0:
        return arrival_s
    wanted = factor * gaps.std() / gaps.mean()
    low, high = 0.05, 8.0
    for _ in range(40):
        power = 0.5 * (low + high)
        some = (gaps / gaps.max()) ** power
        low, high = (power, high) if some.std() / some.mean() < wanted else (low, power)
    some = (gaps / gaps.max()) ** (0.5 * (low + high))
    return np.concatenate(([arrival_s[0]], arrival_s[0] + np.cumsum(some) * (gaps.sum() / some.sum())))


def _longer(requests: Requests, prompt: float, output: float, longest: int) -> Requests:
    """Lengths times a factor, rounded, at least one token, and no longer together than a request may be."""
    prompts = np.clip(np.rint(requests.prompt_tokens * prompt), 1, longest - 1).astype(np.int64)
    room = np.maximum(longest - prompts, 1)
    outputs = np.clip(np.rint(requests.output_tokens * output), 1, room).astype(np.int64)
    limits = requests.max_tokens
    if limits is not None:
        limits = np.minimum(np.maximum(limits, outputs), room)
    prefix = requests.prefix and _within(requests.prefix, prompts)
    return replace(requests, prompt_tokens=prompts, output_tokens=outputs, max_tokens=limits, prefix=prefix)


def _within(prefix: PrefixBlocks, prompt_tokens: Ints) -> PrefixBlocks:
    """The shared blocks that still lie whole within each prompt."""
    had = np.diff(prefix.offsets)
    kept = np.minimum(had, prompt_tokens // prefix.block_tokens)
    owner = np.repeat(np.arange(len(had)), had)
    position = np.arange(len(prefix.ids)) - prefix.offsets[:-1][owner]
    offsets = np.concatenate(([0], np.cumsum(kept))).astype(np.int64)
    return replace(prefix, ids=prefix.ids[position < kept[owner]], offsets=offsets)
