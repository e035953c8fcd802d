"""What should be deployed for this traffic, on this device, so that the objectives hold at least cost?

The plan tries every combination of the space on growing numbers of replicas (ladder.py), each against the whole
trace in the simulator of vLLM's scheduler (evaluate.py), recommends one (ranking.py) and says how sure the
step-time model is of it (confidence.py). Nothing is averaged that is a tail, nothing is extrapolated beyond what
the calibration measured, and the same question has the same answer, however many threads worked on it.
Inputs and results are in seconds, tokens and shares of 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from calibration.architecture import Architecture
from planner.search.answer import Question, answer
from planner.search.confidence import StepTimes, error_band, pick_refits
from planner.search.evaluate import Bench, Requests, Simulate
from planner.search.inputs import sha256, traffic_inputs
from planner.search.ladder import Climbed, OnProgress, climb_all
from planner.search.objectives import Objective, check_objectives
from planner.search.replica_curve import replica_curve
from planner.search.result import SCHEMA_VERSION, Excluded, PlanResult, ReplicaPoint, Verdict
from planner.search.space import DEFAULT_MAX_REPLICAS, Bounds, SearchSpace, combinations, default_space
from planner.search.table import candidate_results
from planner.serving_engines import vllm
from planner.simulation.kernel import simulate as simulate_compiled
from planner.traffic import Traffic

DEFAULT_REFITS: Final = 20
_LISTED_EXCLUSIONS: Final = 20


class PlanError(ValueError):
    """Inputs no plan can be made from: `.field` names the input, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def plan(
    traffic: Traffic,
    model: StepTimes,
    kv_tokens: int,
    architecture: Architecture,
    objectives: Sequence[Objective],
    space: SearchSpace | None = None,
    *,
    max_replicas: int = DEFAULT_MAX_REPLICAS,
    seed: int = 0,
    device: str = "",
    max_model_len: int | None = None,
    host_gap_s: float = 0.0,
    band: float | None = None,
    refits: int = DEFAULT_REFITS,
    threads: int | None = None,
    on_progress: OnProgress = lambda done, total, message: None,
    should_stop: Callable[[], bool] = lambda: False,
    simulate: Simulate = simulate_compiled,
) -> PlanResult:
    """Find the least replicas, and the knobs, that meet all `objectives` for `traffic`.

    kv_tokens: KV pool of one replica as measured, the block vLLM reserves included. space: default what the
    calibration covers, on up to `max_replicas` replicas. max_model_len: default the most that model and pool
    allow. host_gap_s is added to each step. band: share of a limit below which two margins are a tie; default
    the error of the step-time model. refits: how many of the model's bootstrap refits the finalists are
    simulated with, drawn with `seed`. `should_stop` is asked between simulations; a stopped plan has `complete`
    False and says so.
    Raises ObjectiveError, SpaceError or PlanError for unusable inputs, each with field and message.
    """
    goals = check_objectives(tuple(objectives))
    arrays = model.arrays()
    bounds = Bounds.of(arrays)
    space = space or default_space(bounds, max_replicas)
    longest = _longest_request(kv_tokens, architecture, space, max_model_len)
    requests, excluded = _requests(traffic, longest)
    found, repeats = combinations(space, bounds, kv_tokens, longest)
    most_replicas = min(space.max_replicas, requests.count)
    workers = threads or _processors()
    bench = Bench(requests, goals, _trade_axes(goals), arrays, host_gap_s, simulate, should_stop)
    climbed = climb_all(bench, found, most_replicas, threads=workers, on_progress=on_progress)
    question = Question(
        bench=bench,
        model=model,
        architecture=architecture,
        subject=architecture.name + (f" on {device}" if device else ""),
        max_model_len=longest,
        max_replicas=most_replicas,
        band=error_band(model) if band is None else band,
        refits=pick_refits(model, refits, seed),
        threads=workers,
        combinations=found,
        repeats=repeats,
        excluded=excluded,
    )
    if climbed.climbs and not climbed.stopped:
        steps = len(climbed.climbs) * most_replicas
        on_progress(steps, steps, "Simulating the finalists with refits of the step-time model")
    verdict, complete = answer(question, climbed)
    by_replicas = _by_replicas(question, climbed, verdict) if complete else ()
    inputs: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "engine": {"name": "vllm", "version": vllm.VERSION},
        "traffic": traffic_inputs(traffic),
        "step_time_sha256": sha256(model.to_dict()),
        "architecture": architecture.to_dict(),
        "device": device,
        "kv_tokens": kv_tokens,
        "max_model_len": longest,
        "objectives": [o.spec for o in goals],
        "space": space.to_dict(),
        "seed": seed,
        "host_gap_s": host_gap_s,
        "band": question.band,
        "refits": refits,
    }
    return PlanResult(
        verdict=verdict,
        candidates=candidate_results(bench, climbed, found),
        objectives=goals,
        trade_axes=bench.trade,
        trade_replicas=climbed.replicas,
        excluded=excluded,
        complete=complete,
        inputs=inputs,
        content_hash=sha256(inputs),
        by_replicas=by_replicas,
    )


def _by_replicas(question: Question, climbed: Climbed, verdict: Verdict) -> tuple[ReplicaPoint, ...]:
    """What the shown configuration does on other numbers of replicas."""
    shown = verdict.choice or verdict.closest
    climb = next((c for c in climbed.climbs if shown and c.combination.knobs == shown.candidate.knobs), None)
    if climb is None or climb.last is None:
        return ()
    knobs = climb.combination.knobs
    return replica_curve(question.bench, knobs, climb.last, question.max_replicas, question.threads)


def _longest_request(
    kv_tokens: int, architecture: Architecture, space: SearchSpace, max_model_len: int | None
) -> int:
    """max_model_len: what was asked for, if model and pool can hold it, else the most they can."""
    pool_tokens = vllm.usable_blocks(kv_tokens, space.block_tokens) * space.block_tokens
    if pool_tokens < 2:
        raise PlanError(
            "kv_tokens",
            f"a KV pool of {kv_tokens} tokens has no usable block of {space.block_tokens} tokens beside the "
            "reserved one",
        )
    most = min(architecture.max_position_tokens, pool_tokens)
    if max_model_len is None:
        return most
    if not 2 <= max_model_len <= most:
        raise PlanError(
            "max_model_len",
            f"max_model_len lies in 2..{most} (the model takes {architecture.max_position_tokens} tokens, the KV "
            f"pool {pool_tokens}), not {max_model_len}",
        )
    return max_model_len


def _requests(traffic: Traffic, max_model_len: int) -> tuple[Requests, Excluded]:
    """The requests that can finish, and those that cannot."""
    long = vllm.requests_too_long(traffic.prompt_tokens, traffic.output_tokens, max_model_len)
    if long.all():
        raise PlanError(
            "traffic",
            f"all {len(long):,} requests need more than max_model_len {max_model_len:,} tokens (prompt and output)",
        )
    first = np.flatnonzero(long)[:_LISTED_EXCLUSIONS].tolist()
    listed = tuple((i, int(traffic.prompt_tokens[i]), int(traffic.output_tokens[i])) for i in first)
    kept = ~long
    requests = Requests(
        np.ascontiguousarray(traffic.arrival_s[kept]),
        np.ascontiguousarray(traffic.prompt_tokens[kept]),
        np.ascontiguousarray(traffic.output_tokens[kept]),
    )
    return requests, Excluded(int(long.sum()), max_model_len, listed)


def _trade_axes(objectives: Sequence[Objective]) -> tuple[Objective, Objective]:
    """The axes of the trade plot: the asked percentiles of TTFT and ITL, or the customary ones."""
    ttft = next((o for o in objectives if o.metric == "ttft"), Objective("ttft", 95.0, 1.0))
    itl = next((o for o in objectives if o.metric == "itl"), Objective("itl", 99.0, 1.0))
    return ttft, itl


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
