"""Who has no token in a step, for whom they wait, and why: followed from step to step along recorded schedules.

  step          it came after the schedule was made
  queue         somebody stands before it: the queue's head
  seats         head of the queue: as many run as may
  kv            head of the queue: the KV blocks it needs are not free
  budget        the step's token budget is used up: by the rows with prompts, or by all
  preemption    head of the queue: nobody is admitted in a step that takes blocks away from somebody
  prefill       a decode waits for a batch of prompts (prefill first)
  chunk order   a prompt waits for prompts before it, or for its turn
  policy        the engine's rules give it nothing in this step (cadence, shares)

`again` marks one that was preempted before and waits to be computed anew. Why the head of the queue is not admitted is
read off what the schedule left: seats, blocks, budget, in this order, as engines ask for them. Engines that reserve or
estimate ask for more blocks than are taken; with seats and budget left, these are what it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from planner.simulation.kernel.records import STEADY
from planner.simulation.kernel.state import State
from planner.simulation.profile import FITS, PREFILL_FIRST, Profile
from planner.simulation.workload import Workload

MOST_WAITS: Final = 50
MOST_NAMED: Final = 8

Tokens = tuple[int, int, int, bool]  # request, tokens, context, decode


@dataclass(frozen=True, slots=True)
class Wait:
    """`waits_for`: up to MOST_NAMED requests; none where it is everybody who runs, or nobody."""

    request: int
    phase: str
    why: str
    waits_for: tuple[int, ...] = ()
    again: bool = False


@dataclass(slots=True)
class Followed:
    """Positions of the workload: `running` in running order, `queue` in its order; `emitted` tokens of each known
    request; `arrived`: how many have come."""

    workload: Workload
    profile: Profile
    running: list[int]
    queue: list[int]
    emitted: dict[int, int]
    computed: dict[int, int]
    preempted: set[int]
    arrived: int
    _rank: dict[int, int] = field(default_factory=dict)

    def step(
        self,
        batch: Sequence[Tokens],
        preempted: Sequence[int],
        scheduled_s: float,
        end_s: float,
        seats_taken: int,
        free_blocks: int,
    ) -> tuple[list[Wait], int]:
        """Go on by one schedule; the first MOST_WAITS who wait in it, and how many more do."""
        self._arrive(scheduled_s)
        for request in preempted:
            self._send_back(request)
        served = {request for request, _, _, _ in batch}
        admitted = [request for request in self.queue if request in served]
        if admitted:
            self.queue = [request for request in self.queue if request not in served]
            self.running += admitted
        waits = self._running_without(batch, served)
        head = self._why_not_admitted(batch, preempted, seats_taken, free_blocks)
        for at, request in enumerate(self.queue[: MOST_WAITS + 1]):
            again = request in self.preempted
            if at == 0:
                waits.append(Wait(self._name(request), "queue", head[0], head[1], again))
            else:
                waits.append(Wait(self._name(request), "queue", "queue", (self._name(self.queue[0]),), again))
        more = max(0, len(self.queue) - MOST_WAITS - 1)
        waits += self._came_later(scheduled_s, end_s)
        self._settle(batch)
        return waits[:MOST_WAITS], more + max(0, len(waits) - MOST_WAITS)

    def _arrive(self, scheduled_s: float) -> None:
        arrivals = self.workload.arrival_s
        while self.arrived < len(arrivals) and arrivals[self.arrived] <= scheduled_s:
            self._enqueue(self.arrived)
            self.arrived += 1

    def _enqueue(self, request: int) -> None:
        self.queue.append(request)
        self.emitted.setdefault(request, 0)
        self.computed.setdefault(request, 0)
        if self._rank:
            self.queue.sort(key=self._rank.__getitem__)

    def _send_back(self, request: int) -> None:
        if request in self.running:
            self.running.remove(request)
        self.preempted.add(request)
        self.computed[request] = 0
        if self._rank or self.profile.fewest_outputs:
            self._enqueue(request)
        else:
            self.queue.insert(0, request)

    def _running_without(self, batch: Sequence[Tokens], served: set[int]) -> list[Wait]:
        prompts = tuple(self._name(request) for request, _, _, decode in batch if not decode)[:MOST_NAMED]
        full = sum(tokens for _, tokens, _, _ in batch) >= self.profile.budget
        waits = []
        for request in self.running:
            if request in served or self._has_all(request):
                continue
            decodes = self.computed[request] >= self.workload.prompt_tokens[request]
            if decodes and self.profile.assembler == PREFILL_FIRST and prompts:
                why = "prefill"
            elif full:
                why = "budget"
            else:
                why = "policy" if decodes or not prompts else "chunk order"
            named = prompts if why in ("prefill", "budget", "chunk order") else ()
            waits.append(Wait(self._name(request), "decode" if decodes else "prefill", why, named))
        return waits

    def _has_all(self, request: int) -> bool:
        """Its last token is computed; only the result is not back yet."""
        return self.emitted[request] >= int(self.workload.output_tokens[request])

    def _why_not_admitted(
        self, batch: Sequence[Tokens], preempted: Sequence[int], seats_taken: int, free_blocks: int
    ) -> tuple[str, tuple[int, ...]]:
        if not self.queue:
            return "", ()
        profile, head = self.profile, self.queue[0]
        prompts = tuple(self._name(request) for request, _, _, decode in batch if not decode)[:MOST_NAMED]
        if preempted and profile.assembler != PREFILL_FIRST:
            return "preemption", tuple(self._name(request) for request in preempted[:MOST_NAMED])
        if seats_taken >= profile.seats:
            return "seats", ()
        known = int(self.workload.prompt_tokens[head]) + self.emitted[head]
        needed = -(-known // profile.block_size) + (profile.watermark_blocks if seats_taken else 0)
        if needed > free_blocks:
            return "kv", ()
        used = sum(tokens for _, tokens, _, _ in batch)
        if used >= profile.budget or (not profile.chunked and used + known > profile.budget):
            return "budget", prompts
        if profile.admission != FITS:
            return "kv", ()
        return "policy", ()

    def _came_later(self, scheduled_s: float, end_s: float) -> list[Wait]:
        arrivals = self.workload.arrival_s
        until = int(np.searchsorted(arrivals, end_s, side="left"))
        later = range(self.arrived, min(until, self.arrived + MOST_WAITS))
        return [Wait(self._name(request), "queue", "step") for request in later]

    def _settle(self, batch: Sequence[Tokens]) -> None:
        for request, tokens, context, _ in batch:
            self.computed[request] = context + tokens
            if context + tokens == int(self.workload.prompt_tokens[request]) + self.emitted[request]:
                self.emitted[request] += 1
                if self._has_all(request) and request in self.running:
                    self.running.remove(request)

    def _name(self, request: int) -> int:
        return int(self.workload.kept[request])


def begin_with(
    running: list[int], queue: list[int], workload: Workload, profile: Profile, state: State
) -> Followed:
    """From the kernel's lists between two schedules."""
    tick = int(state.now["tick"][0])
    requests = state.requests
    emitted, computed = {}, {}
    for request in (*running, *queue):
        emitted[request] = int(requests["emitted"][request])
        computed[request] = int(requests["computed"][request])
        if requests["state"][request] == STEADY:
            left = int(requests["finish_tick"][request]) - tick
            emitted[request] = int(requests["output"][request]) - left
            computed[request] = int(requests["prompt"][request]) + emitted[request] - 1
    ranks = {}
    if profile.by_priority:
        ranks = dict(enumerate(requests["queue_rank"].tolist()))
    return Followed(
        workload=workload,
        profile=profile,
        running=list(running),
        queue=list(queue),
        emitted=emitted,
        computed=computed,
        preempted={request for request in queue if requests["preemptions"][request] > 0},
        arrived=int(state.now["arrived"][0]),
        _rank=ranks,
    )
