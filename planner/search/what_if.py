"""One configuration of a finished plan moved by hand: the same requests, step times and rules, another setting.

A plan's inputs say everything a simulation needs, so the plan can be opened again (`reopen`) and asked about any
setting of rate, limits, knobs, replicas, split and link (`ask`). The way from setting to numbers is the search's own:
`combinations` makes and judges the knobs, `evaluate` simulates and pools, `why` says what is nearly used up. At the
plan's own setting the numbers are therefore the plan's. What is not here is the interval: that takes hundreds of
simulations (`confidence`), and this is one.

Of more than MOST_REQUESTS requests, or about MOST_TOKENS output tokens, only the busiest stretch of so many is
simulated, from empty queues; an answer says so. Where classes have objectives of their own, steps are recorded, and it
is as many as have about MOST_RECORDED_TOKENS output tokens. Seconds, tokens, decimal GB/s where the name says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.steptime import StepTimeArrays
from planner.search.combinations import (
    Candidate,
    Combination,
    Holds,
    Pools,
    Status,
    combinations,
    pool_warnings,
)
from planner.search.conditions import Conditions, Link
from planner.search.engines import HAND_OFFS, NAMES, Variant, budget_of, cap_of, seqs_of, variant_of
from planner.search.evaluate import Bench, evaluation_of, judge, run
from planner.search.fleet import FIRST, SECOND, Fleet
from planner.search.objectives import Objective
from planner.search.outside import outside, with_axis
from planner.search.prepare import trade_axes
from planner.search.requests import Requests, requests_of
from planner.search.result import Behaviour, Prediction
from planner.search.space import Bounds, SearchSpace
from planner.search.table import behaviour, predictions
from planner.search.why import CURVE, Limit, curves, limits
from planner.simulation.kernel import simulate as simulate_compiled
from planner.simulation.kernel.cluster import simulate as simulate_cluster_compiled
from planner.traffic import Traffic
from planner.verification.window import busiest

MOST_REQUESTS: Final = 50_000
MOST_TOKENS: Final = 20_000_000  # of output
MOST_RECORDED_TOKENS: Final = 1_000_000


class SettingError(ValueError):
    """A setting that cannot be: `.field` names its part, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the sliders stand. `rate_multiplier` as in `Conditions`; `chunk_cap_tokens` 0: no cap.

    `prefill_replicas` of `replicas` prefill; 0: all alike. Of two pools the budget and the cap are the prefill pool's
    and the sequences the decode pool's. `link_gb_per_s`: decimal; None: no link.
    """

    objectives: tuple[Objective, ...]
    rate_multiplier: float
    budget_tokens: int
    chunk_cap_tokens: int
    max_num_seqs: int
    replicas: int
    prefill_replicas: int = 0
    link_gb_per_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"objectives": [o.spec for o in self.objectives]}


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the requests that is simulated: `count` of `of`, which arrive `from_s` to `to_s` after the first
    of them at the traffic's own rate."""

    count: int
    of: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Reopened:
    """All that a plan's candidates share. `at_own_rate`: its requests before any change of the rate. `holds`,
    `bytes_per_token` (of all ranks) and `step_times`: by kind of hardware, as `fleet` numbers them."""

    at_own_rate: Requests
    window: Window | None
    conditions: Conditions
    space: SearchSpace
    holds: tuple[Holds, ...]
    max_model_len: int
    longest_prompt_tokens: int
    bytes_per_token: tuple[float, ...]
    step_times: tuple[StepTimeArrays, ...]
    fleet: Fleet
    host_gap_s: float
    shown: Candidate
    start: Setting


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer to one setting. `predictions` have no intervals; `limits`: the most used first; `curves_s`: seconds
    by metric at `why.CURVE`. Where the engine refuses the knobs, or nothing can be said of them, `status` and `reason`
    tell, and the rest is empty."""

    setting: Setting
    candidate: Candidate
    status: Status
    reason: str
    warnings: tuple[str, ...]
    gpus: int
    cost_per_hour: float | None
    requests: int
    predictions: tuple[Prediction, ...] = ()
    behaviour: Behaviour | None = None
    limits: tuple[Limit, ...] = ()
    curves_s: Mapping[str, Sequence[float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "setting": self.setting.to_dict(),
            **self.candidate.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "warnings": list(self.warnings),
            "gpus": self.gpus,
            "cost_per_hour": self.cost_per_hour,
            "requests": self.requests,
            "objectives": [p.to_dict() for p in self.predictions],
            "behaviour": asdict(self.behaviour) if self.behaviour else None,
            "limits": [limit.to_dict() for limit in self.limits],
            "curve_percentiles": list(CURVE),
            "curves_s": dict(self.curves_s or {}),
        }


def reopen(
    traffic: Traffic,
    step_time: StepTimeArrays,
    capacity: KVCapacity,
    architecture: Architecture,
    objectives: tuple[Objective, ...],
    space: SearchSpace,
    conditions: Conditions,
    shown: Candidate,
    *,
    max_model_len: int,
    host_gap_s: float = 0.0,
    most_requests: int | None = MOST_REQUESTS,
    second: tuple[StepTimeArrays, KVCapacity] | None = None,
    names: tuple[str, ...] = ("",),
) -> Reopened:
    """The plan that showed `shown`, ready to be asked again; `most_requests` None: about all of its requests, however
    many. second: of a plan on two kinds of hardware the other one's step times and pool; names: of the kinds. Raises
    ConditionError for a window without requests."""
    kinds = ((step_time, capacity), *([second] if second else []))
    own = replace(conditions, rate_multiplier=1.0, growth=0.0, headroom=0.0)
    whole, _ = requests_of(traffic, own, max_model_len, space.block_tokens, objectives)
    requests, window = whole, None
    most = whole.count if most_requests is None else _most_requests(whole, most_requests)
    if whole.count > most:
        requests, first = busiest(whole, most)
        last = first + most - 1
        span = (float(whole.arrival_s[first]), float(whole.arrival_s[last]))
        window = Window(most, whole.count, *span)
    return Reopened(
        at_own_rate=requests,
        window=window,
        conditions=conditions,
        space=space,
        holds=tuple(Holds(Bounds.of(arrays), pool) for arrays, pool in kinds),
        max_model_len=max_model_len,
        longest_prompt_tokens=int(whole.prompt_tokens.max()),
        bytes_per_token=tuple(
            float(architecture.kv_bytes_per_token(tensor_parallel=pool.ranks)) for _, pool in kinds
        ),
        step_times=tuple(arrays for arrays, _ in kinds),
        fleet=Fleet.of(conditions, names[: len(kinds)], space.max_replicas),
        host_gap_s=host_gap_s,
        shown=shown,
        start=_start(objectives, conditions, shown),
    )


def _most_requests(whole: Requests, most_requests: int) -> int:
    """Work goes by token, and memory too where classes have objectives of their own and steps are recorded
    (`class_gaps`)."""
    most_tokens = MOST_TOKENS if whole.group is None else MOST_RECORDED_TOKENS
    tokens = int(whole.output_tokens.sum())
    return max(2, min(most_requests, int(whole.count * min(1.0, most_tokens / tokens))))


def _start(objectives: tuple[Objective, ...], conditions: Conditions, shown: Candidate) -> Setting:
    sizing = shown.pools.prefill if shown.pools else shown.knobs
    link = conditions.link
    return Setting(
        objectives,
        conditions.rate_multiplier,
        budget_of(sizing),
        cap_of(sizing),
        seqs_of(shown.knobs),
        shown.replicas,
        shown.prefill_replicas,
        link.table.peak_bytes_per_s / 1e9 if link else None,
    )


def ask(subject: Reopened, setting: Setting, should_stop: Callable[[], bool] = lambda: False) -> WhatIf:
    """Simulate the requests in this setting. Raises SettingError, and Stopped when `should_stop` says so."""
    check_setting(subject, setting)
    candidate, judged = candidate_at(subject, setting)
    bench = bench_at(subject, setting, should_stop)
    refused = WhatIf(
        setting,
        candidate,
        judged.status,
        judged.reason,
        judged.warnings,
        subject.fleet.gpus_of(candidate),
        subject.fleet.price_of(candidate),
        bench.requests.count,
    )
    if judged.status != "not tried":
        return refused
    ran = run(bench, candidate)
    evaluation = evaluation_of(bench, ran)
    status, reason = judge(evaluation, bench.objectives)
    if status == "not covered":
        reason = with_axis(reason, outside(bench, candidate, evaluation))
    return replace(
        refused,
        status=status,
        reason=reason,
        predictions=predictions(bench, evaluation),
        behaviour=behaviour(evaluation),
        limits=limits(evaluation),
        curves_s={} if evaluation.saturated else curves(ran),
    )


def check_setting(subject: Reopened, setting: Setting) -> None:
    """Raises SettingError for objectives of other classes than the plan's, whose requests are not told apart."""
    asked, own = ({o.request_class for o in each.objectives} for each in (setting, subject.start))
    if asked - {None} != own - {None}:
        names = ", ".join(sorted(name for name in own if name)) or "none"
        raise SettingError(
            "objectives", f"name the classes that the plan has objectives for ({names}), and no others"
        )


def bench_at(subject: Reopened, setting: Setting, should_stop: Callable[[], bool] = lambda: False) -> Bench:
    conditions = replace(subject.conditions, rate_multiplier=setting.rate_multiplier)
    return Bench(
        subject.at_own_rate.faster(conditions.load),
        setting.objectives,
        trade_axes(setting.objectives),
        subject.step_times[FIRST],
        subject.host_gap_s,
        simulate_compiled,
        should_stop,
        link=_link_at(subject, setting),
        bytes_per_token=subject.bytes_per_token[FIRST],
        message_s=conditions.message_s,
        hit_share=conditions.hit_share,
        simulate_cluster=simulate_cluster_compiled,
        second_step_time=subject.step_times[SECOND] if len(subject.step_times) > 1 else None,
        second_bytes_per_token=subject.bytes_per_token[SECOND] if len(subject.step_times) > 1 else None,
        fleet=subject.fleet,
    )


def _link_at(subject: Reopened, setting: Setting) -> Link | None:
    """The plan's link at another speed; one that the plan did not have is as entered, without a latency."""
    known, wanted = subject.conditions.link, setting.link_gb_per_s
    if wanted is None:
        return None
    if known is None:
        return Link.entered(wanted)
    factor = wanted / (known.table.peak_bytes_per_s / 1e9)
    return known if factor == 1.0 else known.scaled(factor)


def candidate_at(subject: Reopened, setting: Setting) -> tuple[Candidate, Combination]:
    """The deployment of a setting, and what the engine and the calibration say of its knobs: status "not tried" where
    nothing speaks against a simulation."""
    if not setting.prefill_replicas:
        variant = variant_of(subject.shown.knobs)
        found = _made(
            subject,
            setting.budget_tokens,
            setting.chunk_cap_tokens,
            setting.max_num_seqs,
            variant,
            kind := subject.shown.kinds[-1],
        )
        return Candidate(found.knobs, setting.replicas, kind=kind, router=subject.shown.routed), found
    if setting.prefill_replicas >= setting.replicas:
        raise SettingError("prefill_replicas", "leaves no replica to decode")
    if setting.link_gb_per_s is None:
        raise SettingError("link_gb_per_s", "separate pools need a link: give its speed")
    pools, judged = _pools_at(subject, setting)
    return Candidate(pools.decode, setting.replicas, pools, setting.prefill_replicas), judged


def _pools_at(subject: Reopened, setting: Setting) -> tuple[Pools, Combination]:
    """The plan's pools with another budget and other sequences. A plan without pools gets such as the search tries, on
    its own hardware: what does not matter to a pool stands at its most."""
    shown, space = subject.shown, subject.space
    own = shown.pools
    engine = subject.conditions.engine
    variant = variant_of(own.decode if own else shown.knobs)
    most_seqs, most_budget = max(space.max_num_seqs), max(space.budgets_tokens)
    seats = seqs_of(own.prefill) if own else min(most_seqs, setting.budget_tokens)
    on = (shown.kinds[0], shown.kinds[-1])
    prefill = _made(subject, setting.budget_tokens, setting.chunk_cap_tokens, seats, variant, on[0])
    own_budget = budget_of(own.decode) if own else most_budget
    decode = _made(subject, own_budget, 0, setting.max_num_seqs, variant, on[1])
    judged = next((one for one in (prefill, decode) if one.status != "not tried"), prefill)
    local = own.local_prefill_tokens if own else 0
    warned = pool_warnings(decode.knobs, local, subject.max_model_len, subject.longest_prompt_tokens)
    judged = replace(judged, warnings=warned)
    if own is not None:
        return replace(own, prefill=prefill.knobs, decode=decode.knobs, warnings=warned), judged
    made = Pools(prefill.knobs, decode.knobs, HAND_OFFS[engine][0], router=shown.routed)
    return replace(made, prefill_kind=on[0], decode_kind=on[1]), judged


def _made(subject: Reopened, budget: int, cap: int, seqs: int, variant: Variant, kind: int) -> Combination:
    """Knobs by the search's own rules on one kind of hardware, and its judgement of them."""
    held, engine = subject.holds[kind], subject.conditions.engine
    if cap and not NAMES[engine][2]:
        raise SettingError("chunk_cap_tokens", "this engine has no cap beside its budget: leave it at 0")
    space = replace(subject.space, budgets_tokens=(budget,), chunk_caps_tokens=(cap,), max_num_seqs=(seqs,))
    found, _ = combinations(
        space,
        held.bounds,
        held.capacity,
        subject.max_model_len,
        engine,
        longest_prompt_tokens=subject.longest_prompt_tokens,
        prefix_caching=subject.conditions.prefix != "none",
        kind=kind,
    )
    return next(one for one in found if variant_of(one.knobs) == variant)
