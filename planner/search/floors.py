"""What no run of a candidate can beat: the least that prompts, decodes and transfers take on its pools.

*Prompts.* A prompt token costs at least the least seconds per token of any step that the budget allows. Where requests
are dealt in turn and a replica computes them in the order in which they come (vLLM without priorities), all that came
before a request on its replica and was not done by then comes before it: the least wait follows by Lindley's recursion
(1952), request by request. Elsewhere the prompts of all requests that must be in time are held against all the time
that there is.
*Decodes.* No gap between tokens is shorter than the shortest step. A replica emits at most the tokens, and attends to
at most the contexts, of its best step per second, within its seats and its KV pool; what must be over by the last
arrival + L has at least so much of both.
*Transfers.* A card carries at most what the link reaches at best, and each one crosses one card of either pool.

Each is taken with `SLACK` to spare, because the step-time law is a fit, and sampled where it is looked for its least.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from calibration.steptime import StepTimeArrays
from calibration.steptime.scalar import step_seconds
from planner.search.combinations import Candidate, Pools
from planner.search.engines import budget_of, seqs_of
from planner.search.evaluate import Bench
from planner.search.objectives import Objective
from planner.search.requests import Bools, Floats, Requests
from planner.search.seconds import seconds_text
from planner.simulation.cluster.deployment import PULL, ROUND_ROBIN
from planner.simulation.knobs import Knobs, VllmKnobs

SLACK: Final = 0.1
#: Requests that have begun on a replica and are not over, in seats: those that run, and those that had to make room.
BEGUN: Final = 2
_CONTEXTS: Final = 128  # so many sums of contexts a best step is looked for at
_FEW_ROWS: Final = (*range(1, 33), 64, 128, 256)  # where the shortest step is looked for


@dataclass(frozen=True, slots=True)
class Floors:
    """Of one kind of hardware. least_s float64[B + 1]: least seconds per prompt token in steps of up to so many tokens;
    prompts float64[N]: their lengths, sorted; step_s: the shortest step that emits a token of a running request."""

    least_s: Floats
    prompts: Floats
    step_s: float
    model: StepTimeArrays
    _known: dict[object, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, bench: Bench, most_tokens: int) -> Floors:
        """`bench`: that kind's."""
        prompts = np.sort(bench.requests.prompt_tokens).astype(np.float64)
        model = bench.step_time
        least = float(prompts[0]) if len(prompts) else 1.0
        step_s = min(decode_step_s(model, float(n), n * least) for n in _FEW_ROWS)
        return cls(least_seconds_per_token(model, most_tokens), prompts, step_s * (1.0 - SLACK), model)

    def known(self, key: object, make: Callable[[], Floats]) -> Floats:
        """Worked out once. Two threads may both do it, which does no harm."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def least_seconds_per_token(model: StepTimeArrays, most_tokens: int) -> Floats:
    """float64[most_tokens + 1]: the least of seconds / n over steps of n = 1.. prompt tokens; entry 0 is infinite."""
    each = np.full(most_tokens + 1, np.inf)
    for n in range(1, most_tokens + 1):
        seconds, _ = step_seconds(model, float(n), 0.0, 1.0, 0.0, 0.0, 1.0, 1.0)
        each[n] = seconds / n
    return np.minimum.accumulate(each)


def decode_step_s(model: StepTimeArrays, rows: float, contexts: float) -> float:
    """The least of a step with so many running requests, alone or with the shortest chunk beside them."""
    longest = contexts / rows
    alone, _ = step_seconds(model, rows, rows, rows, contexts, longest, 0.0, 0.0)
    beside, _ = step_seconds(model, rows + 1.0, rows, rows + 1.0, contexts, longest, 1.0, 1.0)
    return min(alone, beside)


def out_of_reach(bench: Bench, floors: tuple[Floors, ...], candidate: Candidate) -> str:
    """Why nobody need run the candidate, two pools; "" when somebody must. `floors`: by kind of hardware."""
    if bench.requests.prefix is not None or bench.hit_share or bench.requests.count == 0:
        return ""
    prefill, decode = (floors[kind] for kind in candidate.kinds)
    return (
        too_short_gaps(bench, decode)
        or too_much_work(bench, prefill, candidate)
        or waits_too_long(bench, prefill, decode, candidate)
        or too_many_tokens(bench, decode, candidate)
        or too_many_bytes(bench, prefill, candidate)
    )


def too_short_gaps(bench: Bench, floors: Floors) -> str:
    """Why no replica of this kind emits tokens as fast as is asked for."""
    for o in bench.objectives:
        if o.metric in ("itl", "tpot") and floors.step_s > o.limit_s:
            return (
                f"{o.goal} fails: a step with running requests takes at least {seconds_text(floors.step_s)}"
            )
    return ""


def too_much_work(bench: Bench, floors: Floors, candidate: Candidate) -> str:
    """Why the prompts alone are too much for the candidate; "" when they need not be."""
    if bench.requests.prefix is not None or bench.hit_share or bench.requests.count == 0:
        return ""
    pools = candidate.pools
    replicas = candidate.prefill_replicas if pools else candidate.replicas
    knobs = pools.prefill if pools else candidate.knobs
    local = _most_local(pools) if pools else 0
    least_s = _least_s(floors, knobs)
    for o, must in _of_all(bench):
        shortest = floors.prompts[:must]
        work_s = float(shortest[shortest > local].sum()) * least_s
        have_s = replicas * (_last_s(bench) + o.limit_s)
        if work_s > have_s:
            who = f"{replicas} prefill replica{'s' if replicas > 1 else ''}" if pools else "they"
            return f"{o.label}: the prompts take at least {seconds_text(work_s)}, {who} have {seconds_text(have_s)}"
    return ""


def waits_too_long(bench: Bench, prefill: Floors, decode: Floors, candidate: Candidate) -> str:
    """Why too many requests cannot be served in time, if every step were as short as can be."""
    pools, requests = candidate.pools, bench.requests
    if pools is None or not in_turn_and_order(requests, candidate):
        return ""
    key = (candidate.prefill_replicas, budget_of(pools.prefill), _most_local(pools))
    wait_s = prefill.known(key, lambda: _least_waits_s(bench, prefill, candidate))
    if pools.hand_off == PULL and bench.link is not None:
        moved = np.where(requests.prompt_tokens > _most_local(pools), requests.prompt_tokens - 1, 0)
        wait_s = wait_s + moved * (bench.bytes_per_token / bench.link.table.peak_bytes_per_s * (1.0 - SLACK))
    if requests.extra_s is not None:
        wait_s = wait_s + requests.extra_s
    for o in (part for asked in bench.objectives for part in asked.parts()):
        if o.metric not in ("ttft", "e2e"):
            continue
        least_s = wait_s if o.metric == "ttft" else wait_s + (requests.output_tokens - 1) * decode.step_s
        group = requests.group_of(o)
        missed = int(((least_s > o.limit_s) & _members(requests, group)).sum())
        allowed = allowed_misses(requests, o)
        if missed > allowed:
            return (
                f"{o.goal} fails: {missed:,} requests miss it though every step were as short as can be, "
                f"{allowed:,} are allowed"
            )
    return ""


def in_turn_and_order(requests: Requests, candidate: Candidate) -> bool:
    """Does a prefill replica compute every other, every third, ... prompt, in the order in which they come?"""
    pools = candidate.pools
    return (
        pools is not None
        and pools.router == ROUND_ROBIN
        and requests.priority is None
        and isinstance(pools.prefill, VllmKnobs)
        and not pools.prefill.long_prefill_token_threshold
    )


def _least_waits_s(bench: Bench, floors: Floors, candidate: Candidate) -> Floats:
    """float64[N]: from each arrival to the end of the prompt at the earliest; 0 where the decode pool computes it."""
    requests, pools = bench.requests, candidate.pools
    found = np.zeros(requests.count)
    if pools is None:
        return found
    least_s = _least_s(floors, pools.prefill)
    handed = np.flatnonzero(requests.prompt_tokens > _most_local(pools))
    for replica in range(candidate.prefill_replicas):
        mine = handed[replica :: candidate.prefill_replicas]
        work_s = requests.prompt_tokens[mine] * least_s
        until_s = np.cumsum(work_s)
        begun_s = np.maximum.accumulate(requests.arrival_s[mine] - (until_s - work_s))
        found[mine] = begun_s + until_s - requests.arrival_s[mine]
    return found


def too_many_tokens(bench: Bench, floors: Floors, candidate: Candidate) -> str:
    """Why the decode pool cannot emit what must be over by then."""
    pools, requests = candidate.pools, bench.requests
    if pools is None:
        return ""
    replicas, seats = candidate.decode_replicas, seqs_of(candidate.knobs)
    for o, must in _of_all(bench):
        # Of a hand-over after the first token, that token says nothing of the decode pool.
        if o.metric == "ttft" and pools.hand_off != PULL:
            continue
        over = must - (BEGUN * seats * replicas if o.metric == "ttft" else 0)
        if over <= 0:
            continue
        tokens, contexts = floors.known("decodes", lambda: _decode_work(requests))[:, over - 1].tolist()
        key = ("rates", seats, candidate.knobs.profile.num_blocks)
        rates = floors.known(key, lambda: _best_rates(floors, requests, candidate.knobs))
        need_s = max(tokens / rates[0], contexts / rates[1])
        have_s = replicas * (_last_s(bench) + o.limit_s)
        if need_s > have_s:
            who = f"{replicas} decode replica{'s' if replicas > 1 else ''}"
            return f"{o.label}: the outputs take at least {seconds_text(need_s)}, {who} have {seconds_text(have_s)}"
    return ""


def _decode_work(requests: Requests) -> Floats:
    """float64[2, N]: the least tokens, and the least contexts attended to, of any 1..N requests after their first
    token."""
    outputs = requests.output_tokens.astype(np.float64) - 1.0
    contexts = outputs * (requests.prompt_tokens - 1.0) + 0.5 * outputs * np.maximum(outputs - 1.0, 0.0)
    return np.stack([np.cumsum(np.sort(outputs)), np.cumsum(np.sort(contexts))])


def _best_rates(floors: Floors, requests: Requests, knobs: Knobs) -> Floats:
    """float64[2]: the most tokens emitted and contexts attended to per second by a replica. A step gets longer with
    its rows and their contexts: the fewest and shortest of each number are looked at."""
    seats, profile, model = seqs_of(knobs), knobs.profile, floors.model
    pool = float(profile.num_blocks * profile.block_size)
    shortest = float(requests.prompt_tokens.min())
    longest = float((requests.prompt_tokens + requests.output_tokens).max())
    tokens = max(rows / decode_step_s(model, float(rows), rows * shortest) for rows in range(1, seats + 1))
    contexts = 0.0
    edges = np.linspace(0.0, pool, _CONTEXTS + 1).tolist()
    for low, high in pairwise(edges):
        fewest = max(1.0, math.ceil(low / longest))
        rows = {min(fewest * more, max(fewest, seats)) for more in (1.0, 2.0, 4.0)}
        contexts = max(contexts, high / min(decode_step_s(model, each, max(low, each)) for each in rows))
    return np.array([tokens, contexts]) / (1.0 - SLACK)


def too_many_bytes(bench: Bench, prefill: Floors, candidate: Candidate) -> str:
    """Why the cards cannot carry what must be there by then."""
    pools, link = candidate.pools, bench.link
    if pools is None or link is None:
        return ""
    cards = min(candidate.prefill_replicas, candidate.decode_replicas)
    for o, must in _of_all(bench):
        if o.metric == "ttft" and pools.hand_off != PULL:
            continue
        shortest = prefill.prompts[:must]
        moved = float((shortest[shortest > _most_local(pools)] - 1.0).sum()) * bench.bytes_per_token
        need_s = moved / link.table.peak_bytes_per_s * (1.0 - SLACK)
        have_s = cards * (_last_s(bench) + o.limit_s)
        if need_s > have_s:
            who = f"the cards of {cards} replica{'s' if cards > 1 else ''}"
            return f"{o.label}: the transfers take at least {seconds_text(need_s)}, {who} have {seconds_text(have_s)}"
    return ""


def _most_local(pools: Pools) -> int:
    """Prompts of up to so many tokens are not handed over; of one token, nothing is left to pull."""
    return max(pools.local_prefill_tokens, 1 if pools.hand_off == PULL else 0)


def _of_all(bench: Bench) -> list[tuple[Objective, int]]:
    """The limits on when requests are served, of everybody, and how many requests must be within each."""
    if bench.requests.group is not None:
        return []
    return [
        (o, math.floor(o.percentile / 100.0 * (bench.requests.count - 1)))
        for asked in bench.objectives
        for o in asked.parts()
        if o.metric in ("ttft", "e2e")
    ]


def allowed_misses(requests: Requests, o: Objective) -> int:
    """How many values may lie above the limit with the percentile below it, at the most."""
    total = requests.samples(o)
    return total - math.floor(o.percentile / 100.0 * (total - 1))


def _least_s(floors: Floors, knobs: Knobs) -> float:
    return float(floors.least_s[min(budget_of(knobs), len(floors.least_s) - 1)]) * (1.0 - SLACK)


def _last_s(bench: Bench) -> float:
    return float(bench.requests.arrival_s[-1])


def _members(requests: Requests, group: int | None) -> Bools:
    if group is None or requests.group is None:
        return np.ones(requests.count, dtype=np.bool_)
    members: Bools = requests.group == group
    return members
