"""Prefill and decode engines in processes of their own, one of them at work at a time, with a real hand-off.

One coordinator owns the time: the cluster's reference simulator, whose scheduler, router and links decide as they do in
a prediction. Only the times are real: it takes the events in their order, lets the engine whose turn it is run its
batch, and goes on by the time that took; a KV cache is moved between the processes through shared memory when its
transfer starts, timed alone, and enters as a link event of that speed. On a CPU these are CPU times, so that two
engines on one core are two devices.

Rows that are being replayed from an earlier run's times (`known_s`) run nothing. Seconds, tokens, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibration.engine.interface import ServingRunner
from calibration.steptime import StepShape
from calibration.transfer import TransferTable
from planner.search.requests import Requests
from planner.simulation import reference
from planner.simulation.cluster import reference as cluster
from planner.simulation.cluster.deployment import Disaggregated
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.reference_replica import Leg
from planner.simulation.reference_requests import Row
from planner.verification.loop import Replayed, Stopped, shape_of
from planner.verification.sequences import Blocks, Sequences

Floats = NDArray[np.float64]
HAND_OFF_BLOCKS = (1, 2, 4, 8, 16, 32, 64)
HAND_OFF_REPEATS = 9
SHARED_MEMORY = "shared memory between two processes (software path, one host)"


@dataclass(frozen=True, slots=True)
class HandOffs:
    """Transfers that ran: bytes and seconds of each, alone. `computed_twice`, `differing`: tokens that both pools
    computed, and those of them that came out another."""

    size_bytes: Floats
    seconds: Floats
    computed_twice: int
    differing: int


@dataclass(slots=True)
class TwoPools:
    """Drives the engines of a cluster: `engines` by replica, prefill first, each with its `pools` of blocks."""

    engines: Sequence[ServingRunner]
    pools: Sequence[Blocks]
    sequences: Sequences
    bytes_per_token: float
    with_host_gap: bool = False
    known_s: Sequence[float] = ()
    on_time: Callable[[int, float], None] = lambda tokens, seconds: None
    should_stop: Callable[[], bool] = lambda: False
    times_s: list[float] = field(default_factory=list)  # steps and transfers in the order they came
    seconds: list[float] = field(default_factory=list)
    features: list[tuple[float, ...]] = field(default_factory=list)
    contended: list[bool] = field(default_factory=list)
    shapes: list[StepShape] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    moved: list[tuple[float, float]] = field(default_factory=list)
    legs: dict[int, Leg] = field(default_factory=dict)  # decode sides, by request
    tokens: int = 0
    at: int = 0  # the engine that was asked last

    def step(self, replica: int, rows: list[Row]) -> float:
        """As Drive.step. Raises Stopped, and what the engine raises."""
        for row in rows:
            if isinstance(row.request, Leg) and not row.request.prefill_side:
                self.legs[row.request.index] = row.request
        known = self._known()
        contended = False
        if known is None:
            self.at = replica
            step, ordered = self.sequences.step(rows, self.pools[replica])
            timing, sampled = self.engines[replica].serve(step)
            self.sequences.learn(ordered, sampled)
            known = timing.seconds + (timing.host_gap_s if self.with_host_gap else 0.0)
            contended = timing.contended
        self.features.append(reference.features(rows))
        self.shapes.append(shape_of(rows))
        self.seconds.append(known)
        self.contended.append(contended)
        self.replicas.append(replica)
        self.tokens += sum(row.tokens for row in rows)
        return self._note(known)

    def transfer(self, sender: Leg, receiver: Leg, first_token: int, tokens: int) -> tuple[float, float]:
        """As Drive.transfer: whole blocks from the one that holds `first_token` on."""
        self.legs[receiver.index] = receiver
        seconds = self._known()
        if seconds is None:
            source, target = self.pools[sender.replica], self.pools[receiver.replica]
            size = source.block_tokens
            first, last = first_token // size, -(-(first_token + tokens) // size)
            target.reclaim()
            self.at = sender.replica
            seconds = self.engines[sender.replica].export_kv(source.tables[sender.index][first:last])
            self.at = receiver.replica
            taken = target.grow(receiver, first_token + tokens)[first:last]
            seconds += self.engines[receiver.replica].import_kv(taken)
        seconds = max(seconds, 1e-9)
        moved_bytes = tokens * self.bytes_per_token
        self.moved.append((moved_bytes, seconds))
        self._note(seconds)
        return 0.0, moved_bytes / seconds

    def _known(self) -> float | None:
        """The time an earlier run took at this point; None where this one has to find out."""
        at = len(self.times_s)
        if at < len(self.known_s):
            return self.known_s[at]
        if self.should_stop():
            raise Stopped(self.times_s)
        return None

    def _note(self, seconds: float) -> float:
        self.times_s.append(seconds)
        self.on_time(self.tokens, seconds)
        return seconds

    @property
    def hand_offs(self) -> HandOffs:
        moved = np.array(self.moved, dtype=np.float64).reshape(-1, 2)
        return HandOffs(moved[:, 0], moved[:, 1], self.sequences.computed_twice, self.sequences.differing)


def replay_two_pools(
    drive: TwoPools, requests: Requests, deployment: Disaggregated
) -> tuple[Replayed, ClusterOutcome]:
    """Serve `requests` on the drive's engines. Raises Stopped, and what an engine raises: then the drive has what was
    done until then."""
    outcome = cluster.simulate(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, requests.priority, deployment,
        max_tokens=requests.max_tokens, drive=drive,
    )  # fmt: skip
    replayed = Replayed(
        outcome.requests,
        np.array(drive.features, dtype=np.float64).reshape(-1, 7),
        np.array(drive.seconds),
        np.array(drive.contended, dtype=np.bool_),
        tuple(drive.shapes),
        np.array(drive.replicas, dtype=np.int64) < len(deployment.prefill),
    )
    return replayed, outcome


def measure_hand_off(
    sender: ServingRunner,
    receiver: ServingRunner,
    blocks: int,
    block_tokens: int,
    bytes_per_token: float,
    seed: int,
) -> TransferTable:
    """What moving so many blocks takes here, alone: medians of HAND_OFF_REPEATS, over scattered blocks."""
    random = np.random.default_rng([seed, 7])
    sizes, medians = [], []
    for count in [size for size in HAND_OFF_BLOCKS if size <= blocks // 2] or [1]:
        times = []
        for _ in range(HAND_OFF_REPEATS):
            chosen = random.choice(blocks, count, replace=False).tolist()
            times.append(sender.export_kv(chosen) + receiver.import_kv(chosen))
        sizes.append(count * block_tokens * bytes_per_token)
        medians.append(max(float(np.median(times)), 1e-9))
    return TransferTable.measured(tuple(sizes), tuple(medians), latency_s=0.0, label=SHARED_MEMORY)
