"""A compiled cluster's run while it is paused, as `cluster.glance` describes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Ints
from planner.simulation.cluster.glance import Told
from planner.simulation.kernel.cluster_records import PULL_MODE
from planner.simulation.kernel.cluster_state import Cluster
from planner.simulation.kernel.records import DONE, EXHAUSTED, STEADY


@dataclass(frozen=True, slots=True)
class Paused:
    cluster: Cluster

    @property
    def arrived(self) -> int:
        return int(self.cluster.between.run[0]["arrived"])

    @property
    def peak_running(self) -> int:
        prefill = int(self.cluster.between.run[0]["prefill"])
        return int(self.cluster.between.now["peak_running"][prefill:].max())

    def gap_counts(self) -> Ints:
        counts: Ints = np.sum([state.gap_counts for state in self.cluster.states], axis=0)
        return counts

    def told(self) -> Told:
        between, come = self.cluster.between, self.arrived
        run, count = between.run[0], len(between.ways)
        ways, decode = between.ways[:come], between.requests[:come]
        earliest_s = np.full(come, ways["arrival_s"][-1] if come else 0.0)
        if run["prefill"]:
            # A first token that comes from the prefill side is told when the request is handed over, so it may be known
            # there and not yet here. Of one that has come to a decode pool which pulls, the token is still to come.
            ahead_s = between.requests[count : count + come]["first_token_s"]
            still = (run["mode"] == PULL_MODE) & (between.legs["replica"][:come] >= 0)
            earliest_s = np.where((ahead_s >= 0.0) & ~still, np.minimum(ahead_s, earliest_s), earliest_s)
        begun = decode["first_token_s"] >= 0.0
        state = decode["state"]
        # Preempted with its last token in flight: a request ends in the queue. Steady ones are counted elsewhere.
        waits = (state != STEADY) & begun & (decode["emitted"] >= decode["output"])
        ended = (state == DONE) | (state == EXHAUSTED) | waits
        ended &= begun
        return Told(
            first_token_s=np.where(begun, decode["first_token_s"], earliest_s),
            begun=begun,
            done_s=np.where(ended, decode["last_token_s"], earliest_s),
            ended=ended,
            max_gap_s=decode["max_gap_s"].copy(),
            served=ways["refusal"] == 0,
        )
