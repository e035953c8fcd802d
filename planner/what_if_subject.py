"""A finished plan ready to be asked what-if in the web server: its requests and step times, kept for the next move,
and the simulator's machine code, loaded before it is needed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from accounts.access import OwnedQuerySet
from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.services import step_time_model
from planner import services
from planner.charts.plan import shown_finalist
from planner.models import Plan
from planner.pool_models import calibrations_of
from planner.search import Candidate, Conditions, Link, SearchSpace, parse_objectives
from planner.search.evaluate import run
from planner.search.inputs import sha256
from planner.search.what_if import Reopened, bench_at, reopen
from planner.simulation import kernel, ready
from planner.simulation.kernel import cluster
from planner.simulation.kernel.compiled import cache_folder
from planner.stored_candidates import candidate_of
from planner.what_if_turns import Busy

KEPT: Final = 4  # plans; at most 50,000 requests each, about 3 MB
await_compiled = ready.wait
OLDER: Final = (
    "The plan was made by an earlier version, or with other step times than its calibration has now: where it stands, "
    "the numbers here may differ from its own. Run it again to compare like with like."
)
LOADING_WAIT_S: Final = 20.0
ASK_S: Final = 2.0


class NotAskable(Exception):
    """There is nothing to move; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A plan opened again, and what it had said itself: the shown finalist, and its curves (seconds by metric)."""

    subject: Reopened
    shown: Mapping[str, Any]
    own_curves_s: Mapping[str, Sequence[float]]
    feasible: bool
    remarks: tuple[str, ...] = ()


_kept: OrderedDict[tuple[Any, ...], Opened] = OrderedDict()
_loading: dict[str, threading.Thread] = {}
_lock = threading.Lock()


def askable() -> OwnedQuerySet[Plan]:
    """The rows a what-if may be about; their answers are read only for a plan that was not asked about lately."""
    return Plan.objects.select_related("project", "traffic").defer("result", "log", "traceback")


def opened(plan: Plan) -> Opened:
    """The plan opened again, from memory if it was asked about lately. Raises NotAskable."""
    if plan.is_active:
        raise NotAskable(f"The plan is still {plan.status}: there is no answer to start from yet.")
    key = (plan.pk, plan.finished_at)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    found = _reopened(plan)
    with _lock:
        _kept[key] = found
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return found


def _reopened(plan: Plan) -> Opened:
    result: dict[str, Any] = plan.result or {}
    shown = shown_finalist(result) if result else None
    if shown is None:
        raise NotAskable("The plan shows no configuration to start from.")
    inputs = result["inputs"]
    models = [step_time_model(row) for row in calibrations_of(plan)]
    kinds = inputs.get("hardware") or [inputs]
    told = [inputs["step_time_sha256"], *(kind["step_time_sha256"] for kind in kinds[1:])]
    same = told == [sha256(model.to_dict()) for model in models]
    capacity = inputs.get("kv_capacity")
    second = (models[1].arrays(), KVCapacity.from_dict(kinds[1]["kv_capacity"])) if len(models) > 1 else None
    subject = reopen(
        services.traffic_of(plan.traffic),
        models[0].arrays(),
        KVCapacity.from_dict(capacity) if capacity else KVCapacity.constant(inputs["kv_tokens"]),
        Architecture.from_dict(inputs["architecture"]),
        parse_objectives(inputs["objectives"]),
        SearchSpace.from_dict(inputs["space"]),
        Conditions.from_dict(inputs.get("conditions") or {}),
        candidate_of(shown),
        max_model_len=inputs["max_model_len"],
        host_gap_s=inputs["host_gap_s"],
        second=second,
        names=tuple(kind["device"] for kind in kinds),
    )
    why = result.get("why") or {}
    return Opened(
        subject, shown, why.get("curves_s") or {}, bool(result["verdict"]["choice"]), () if same else (OLDER,)
    )


# The machine code ------------------------------------------------------------------------------------------------


def load(subject: Reopened, candidate: Candidate | None = None, *, wait_s: float = 0.0) -> None:
    """Begin to load the simulator for such a candidate, in a thread, once a process; Busy when it has not come within
    `wait_s` (0: do not wait). From the cache that a worker's start fills it takes about a second."""
    there = candidate or subject.shown
    key = f"{type(there.knobs).__name__}, {there.deployment}"
    with _lock:
        thread = _loading.get(key)
        if thread is None:
            thread = threading.Thread(target=_load, args=(subject, there), name=f"loads {key}", daemon=True)
            _loading[key] = thread
            thread.start()
    if wait_s:
        thread.join(wait_s)
        if thread.is_alive():
            raise Busy("The simulator is still being loaded; try again in a few seconds.")


def _load(subject: Reopened, candidate: Candidate) -> None:
    """Compiling is a process of its own: it would hold this one's interpreter for seconds at a time."""
    await_compiled(lambda: None, subject.conditions.engine)
    bench = bench_at(subject, subject.start)
    if candidate.pools is not None:
        bench = replace(bench, link=bench.link or Link.entered(1.0))
        least = replace(candidate, replicas=2, prefill_replicas=1)
    else:
        least = replace(candidate, replicas=1)
    run(replace(bench, requests=bench.requests.first(1)), least)


def load_at_start() -> threading.Thread:
    """Load what vLLM's plans need once a worker has compiled it, so that the first move does not wait. What it needs
    beside that stays on disk until somebody asks."""

    def when_compiled() -> None:
        if cache_folder() is None:  # nobody compiles for others then, and this process should not unasked
            return
        while not ready.is_ready(ready.VLLM):
            time.sleep(ASK_S)
        kernel.warm_up(ready.IN_ORDER)
        cluster.warm_up(ready.IN_ORDER)

    thread = threading.Thread(target=when_compiled, name="loads the simulator", daemon=True)
    thread.start()
    return thread
