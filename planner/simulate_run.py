"""One simulation that a user asked for: any engine and topology on any traffic, and everything that is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibration.steptime import Chunk, StepShape, StepTimeArrays, features_of
from calibration.steptime.beyond import beyond
from planner.search import Objective
from planner.search.class_gaps import MAX_RECORDED_TOKENS
from planner.simulate_options import SimulateError
from planner.simulation import kernel
from planner.simulation.arrays import Floats, Ints
from planner.simulation.cluster.deployment import (
    Aggregated,
    Deployment,
    Disaggregated,
    QueueLimit,
    RequestClass,
    pool,
)
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.cluster.rules import rules_of
from planner.simulation.cluster.workload import prepare, that_caches_as
from planner.simulation.cluster_microscope import ClusterLook, look_at_cluster
from planner.simulation.kernel import cluster
from planner.simulation.knobs import Knobs
from planner.simulation.microscope import Look, Step, Window, look
from planner.simulation.outcome import Outcome
from planner.simulation.prefix import PrefixBlocks, blocks_of
from planner.simulation.step_features import features_of_record
from planner.simulation.summary import Summary, summarise
from planner.simulation.time_bins import FINEST_BIN_S
from planner.simulation.time_series import time_series
from planner.traffic import Traffic


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """The question. `deployment` None: one replica. Arrivals are those of the traffic, `rate_multiplier` times as
    often; concurrency > 0 closes the loop instead. assumed_hit_share: of prompt tokens, where the traffic has no
    hashes; either counts only for knobs with a prefix cache that is on. ttft_limit_s: requests predicted to have to
    wait longer are turned away; classes may have limits and priorities of their own. `knobs`: of the decode pool."""

    traffic: Traffic
    knobs: Knobs
    step_time: StepTimeArrays
    deployment: Deployment | None = None
    host_gap_s: float = 0.0
    concurrency: int = 0
    think_s: float = 0.0
    rate_multiplier: float = 1.0
    warm_up_requests: int = 0
    queue_limit: QueueLimit | None = None
    assumed_hit_share: float = 0.0
    classes: tuple[RequestClass, ...] = ()
    ttft_limit_s: float | None = None

    @property
    def arrival_s(self) -> Floats:
        times: Floats = self.traffic.arrival_s / self.rate_multiplier
        return times

    @property
    def request_class(self) -> Ints | None:
        classes = self.traffic.request_class
        return None if classes is None else classes.astype(np.int64)

    @property
    def alone(self) -> bool:
        """One replica, and nothing that only a cluster's loop can do."""
        plain = not (self.concurrency or self.warm_up_requests or self.queue_limit or self.classes)
        return self.deployment is None and plain and self.ttft_limit_s is None

    def _requests(self) -> dict[str, Any]:
        return {
            "arrival_s": self.arrival_s,
            "prompt_tokens": self.traffic.prompt_tokens,
            "output_tokens": self.traffic.output_tokens,
            "priority": self.traffic.priority,
            "max_tokens": self._max_tokens(),
            "prefix": self._prefix(),
            "assumed_hit_share": self.assumed_hit_share,
        }

    def _max_tokens(self) -> Ints | None:
        limits = self.traffic.max_tokens
        return None if limits is None else np.maximum(limits, self.traffic.output_tokens)

    def _prefix(self) -> PrefixBlocks | None:
        hashes = self.traffic.prefix_hashes
        if hashes is None or hashes.block_tokens is None or self.assumed_hit_share:
            return None
        profile = that_caches_as(rules_of(self._deployment()))
        if not profile.caching:
            return None
        return blocks_of(hashes, self.traffic.prompt_tokens, profile.block_size, profile.named_ahead)

    def run(self) -> Outcome | ClusterOutcome:
        """SimulateError where simulator and settings do not fit."""
        try:
            if self.alone:
                return kernel.simulate(
                    **self._requests(), knobs=self.knobs, step_time=self.step_time,
                    host_gap_s=self.host_gap_s, bin_s=FINEST_BIN_S,
                )  # fmt: skip
            return cluster.simulate(
                **self._requests(), deployment=self._deployment(), bin_s=FINEST_BIN_S, **self._cluster()
            )
        except ValueError as error:
            raise SimulateError("--traffic", str(error)) from error
        except MemoryError as error:
            raise SimulateError(
                "--knobs", "the KV pool is more than this machine can keep books on"
            ) from error

    def _cluster(self) -> dict[str, Any]:
        """What only a cluster's loop takes."""
        return {
            "concurrency": self.concurrency,
            "think_s": self.think_s,
            "queue_limit": self.queue_limit,
            "warm_up_requests": self.warm_up_requests,
            "request_class": self.request_class if self.classes else None,
            "classes": self.classes,
            "ttft_limit_s": self.ttft_limit_s,
        }

    def check_window(self, window: Window) -> None:
        """SimulateError for what the microscope cannot look at."""
        if not self.alone and window.from_step is not None:
            raise SimulateError("--microscope", "by steps looks at one replica only: give FROM:TO in seconds")

    def look(self, window: Window, outcome: Outcome | ClusterOutcome) -> Look | ClusterLook:
        """The window of the run that had this outcome."""
        if not isinstance(outcome, ClusterOutcome):
            return look(
                **self._requests(), knobs=self.knobs, step_time=self.step_time, window=window,
                host_gap_s=self.host_gap_s,
            )  # fmt: skip
        rules = rules_of(
            self._deployment(), self.concurrency, self.think_s, self.queue_limit, (), self.warm_up_requests,
            self.classes, self.ttft_limit_s,
        )  # fmt: skip
        classes = self.request_class if self.classes else None
        requests = prepare(**self._requests(), rules=rules, request_class=classes)
        return look_at_cluster(requests, rules, outcome, window)

    def outside(self, outcome: Outcome | ClusterOutcome) -> str:
        """By what the steps leave the measured region: the run is made again and recorded, on one replica only the one
        that leaves it most; "" where none does, or a record would be too large."""
        if self.traffic.output_tokens.sum() > MAX_RECORDED_TOKENS or not _uncovered_s(outcome):
            return ""
        if self.alone:
            record = kernel.simulate(
                **self._requests(), knobs=self.knobs, step_time=self.step_time, host_gap_s=self.host_gap_s,
                record_steps=True,
            ).record  # fmt: skip
        else:
            again = cluster.simulate(
                **self._requests(), deployment=self._deployment(), record_steps=True, **self._cluster()
            )
            record = max((*again.prefill, *again.decode), key=lambda use: use.uncovered_s).record
        if record is None:
            return ""
        found = beyond(self.step_time, features_of_record(record, self.traffic.prompt_tokens)[1])
        return "" if found is None else found.text

    def annotated(self, seen: Look | ClusterLook) -> dict[str, Any]:
        """The window as JSON, each step with what it is beyond the measured region by ("": it is inside)."""
        told = seen.to_dict()
        for step, shown in zip(seen.steps, told["steps"], strict=True):
            shape = _shape(step, self.traffic.prompt_tokens) if step.rows else None
            found = beyond(self.step_time, features_of([shape])) if shape else None
            shown["outside"] = found.text if found else ""
        return told

    def _deployment(self) -> Deployment:
        return self.deployment or Aggregated(pool(1, self.knobs, self.step_time, self.host_gap_s))


def told(
    simulation: Simulation,
    outcome: Outcome | ClusterOutcome,
    objectives: Sequence[Objective],
    class_objectives: Mapping[str, Sequence[Objective]],
    series_bins: int,
) -> tuple[Summary, dict[str, Any]]:
    """The summary, and everything as JSON: the knobs as resolved, the summary, the time series if asked for."""
    summary = summarise(
        outcome,
        objectives,
        request_class=simulation.request_class,
        class_names=simulation.traffic.class_names,
        class_objectives=class_objectives,
    )
    data: dict[str, Any] = {"knobs": _knobs(simulation), **summary.to_dict()}
    if series_bins:
        series = time_series(outcome, series_bins)
        values = {name: getattr(series, name) for name in series.__slots__}
        data["series"] = {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
        }
    return summary, data


def _uncovered_s(outcome: Outcome | ClusterOutcome) -> float:
    if isinstance(outcome, Outcome):
        return outcome.uncovered_s
    return sum(use.uncovered_s for use in (*outcome.prefill, *outcome.decode))


def _shape(step: Step, prompt_tokens: Ints) -> StepShape:
    contexts = tuple(row.context for row in step.rows if row.phase == "decode")
    chunks = tuple(
        Chunk(row.tokens, row.context, row.context + row.tokens >= prompt_tokens[row.request])
        for row in step.rows
        if row.phase != "decode"
    )
    return StepShape(contexts, chunks)


def _knobs(simulation: Simulation) -> dict[str, Any]:
    """As resolved; of two pools by their names."""
    deployment = simulation.deployment
    if not isinstance(deployment, Disaggregated):
        return asdict(simulation.knobs)
    pools = {"prefill": deployment.prefill, "decode": deployment.decode}
    return {name: asdict(replicas[0].knobs) for name, replicas in pools.items()}
