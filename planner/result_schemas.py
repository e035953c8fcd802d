"""A plan's result as the API answers it: the stored JSON of planner/search/result.py, typed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ninja import Field, Schema

CandidateStatus = Literal["meets", "fails", "not covered", "saturated", "invalid", "not tried"]


Deployment = Literal["aggregated", "disaggregated"]
EngineName = Literal["vllm", "sglang", "tensorrt_llm"]
KNOBS = "By the engine's own names, with the KV pool they were simulated with; of two pools by `prefill`, `decode`."
Knobs = Annotated[dict[str, Any], Field(description=KNOBS)]


class SplitOut(Schema):
    """Two pools, and how KV caches get from one to the other."""

    prefill: int = Field(description="Replicas.")
    decode: int = Field(description="Replicas.")
    hand_off: Literal["pull", "after prefill", "push chunks"]
    transfer_chunk_tokens: int
    local_prefill_tokens: int = Field(description="Prompts up to this are prefilled by the decode pool.")


class PredictionOut(Schema):
    """Seconds; of goodput shares of its `limits`. `margin` is the share of the limit that is left."""

    key: str = Field("", description="`metric:percentile`, after `class=` where it is for one class.")
    metric: Literal["ttft", "itl", "tpot", "e2e", "goodput"]
    percentile: float
    limit: float = Field(
        description="Of goodput 1: the requests at the percentile are within all its limits."
    )
    limits: dict[str, float] | None = Field(None, description="Of goodput, seconds by metric.")
    request_class: str | None = None
    predicted: float | None = Field(description="null where there is no latency to give, as when saturated.")
    attained: float | None = Field(
        None, description="Of goodput: share of the requests that meet every limit."
    )
    margin: float | None = None
    low: float | None = Field(None, description="90 % interval, finalists only.")
    high: float | None = Field(None, description="null beside a `low`: the draws at that end are saturated.")
    probability: float | None = Field(None, description="Share of the draws in which the objective holds.")
    samples: int | None = None
    requests: int | None = None
    claimed: bool | None = Field(None, description="Whether enough samples stand behind the percentile.")


class PoolUseOut(Schema):
    role: Literal["replica", "prefill", "decode"]
    replicas: int
    idle_share: float
    full_share: float = Field(description="Of the KV pool in use at its fullest.")
    seats: int
    peak_running: int
    busy_s: list[float] = Field(description="In decode, prefill and mixed steps.")
    uncovered_share: float
    chunk_fill: float = Field(description="Prompt tokens of a step that has any, as a share of the budget.")


class BehaviourOut(Schema):
    utilisation: float
    uncovered_share: float = Field(description="Share of the time outside what the calibration measured.")
    mean_batch: float
    peak_running: int
    preemptions: int
    steps: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    split_s: dict[str, float]
    pools: list[PoolUseOut] = []
    link_share: float | None = None
    transfer_adds_s: float | None = Field(None, description="What the transfer adds to the TTFT percentile.")


class TriedOut(Schema):
    replicas: int
    status: CandidateStatus
    reason: str
    prefill_replicas: int = 0


class TradePointOut(Schema):
    ttft_s: float | None
    itl_s: float | None
    status: CandidateStatus
    reason: str


KindNumber = Annotated[
    int | dict[str, int],
    Field(description="Of hardware: position in `inputs.hardware`; of two pools by `prefill`, `decode`."),
]
HardwareNames = Annotated[
    str | dict[str, str] | None,
    Field(description="What it is deployed on; of two pools by `prefill`, `decode`."),
]


class CandidateOut(Schema):
    deployment: Deployment = "aggregated"
    kind: KindNumber = 0
    router: str = "round robin"
    engine: EngineName = "vllm"
    split: SplitOut | None = None
    knobs: Knobs
    replicas: int = Field(
        description="The least that meet the objectives, else the most tried; 0: never simulated."
    )
    status: CandidateStatus
    reason: str
    warnings: list[str]
    objectives: list[PredictionOut]
    worst_margin: float | None
    behaviour: BehaviourOut | None
    tried: list[TriedOut]
    trade: TradePointOut | None


class CandidatePage(Schema):
    items: list[CandidateOut]
    count: int


Flags = Annotated[
    list[str] | dict[str, list[str]],
    Field(
        description="Of the engine's server (TensorRT-LLM: lines of its file); of two pools one list for each."
    ),
]


class FinalistOut(Schema):
    deployment: Deployment
    engine: EngineName = "vllm"
    replicas: int
    split: SplitOut | None = None
    knobs: Knobs
    gpus: int | None = None
    cost_per_hour: float | None = None
    kind: KindNumber = 0
    router: str = "round robin"
    hardware: HardwareNames = None
    status: CandidateStatus
    reason: str
    objectives: list[PredictionOut]
    behaviour: BehaviourOut
    flags: Flags
    warnings: list[str]
    refits: int = Field(
        description="Draws of traffic, step times and link it was simulated in; `holding` met everything."
    )
    holding: int


class DeploymentOut(Schema):
    deployment: Deployment
    kind: KindNumber = 0
    router: str = "round robin"
    engine: EngineName = "vllm"
    replicas: int
    split: SplitOut | None = None
    knobs: Knobs


class LostOut(Schema):
    what: str
    tried: int
    reason: str


class VerdictOut(Schema):
    feasible: bool
    sentence: str
    binding: str | None = Field(description="The tightest objective.")
    choice: FinalistOut | None
    runner_up: FinalistOut | None
    closest: FinalistOut | None
    remarks: list[str]
    impossible: bool = Field(description="No number of replicas would do.")
    alone: dict[str, float] | None = Field(description="Seconds of a request that has a replica to itself.")
    other: FinalistOut | None = Field(None, description="The best of the other deployment.")
    lost: list[LostOut] = Field([], description="Why each other class of configurations is not the answer.")
    ties: list[DeploymentOut] = Field([], description="What the model cannot tell from the choice.")


class SummaryOut(Schema):
    """The answer in one small object: what `manage.py plan --json` prints."""

    feasible: bool
    sentence: str
    deployment: Deployment
    engine: EngineName = "vllm"
    replicas: int | None
    split: SplitOut | None = None
    knobs: Knobs | None
    gpus: int | None = None
    cost_per_hour: float | None = None
    hardware: HardwareNames = None
    router: str | None = None
    headroom: float = Field(
        0.0, description="Share of the load that the predictions have on top of the traffic's."
    )
    objectives: list[PredictionOut]
    binding: str | None
    flags: Flags
    closest: DeploymentOut | None
    impossible: bool
    remarks: list[str]
    excluded: int = Field(description="Requests that can never finish and were left out.")
    complete: bool
    content_hash: str


class TradeAxesOut(Schema):
    replicas: int
    ttft_percentile: float
    itl_percentile: float
    ttft_key: str | None = None
    itl_key: str | None = None


class ExcludedRequestOut(Schema):
    request: int
    prompt_tokens: int
    output_tokens: int


class ExcludedOut(Schema):
    count: int
    max_model_len: int
    first: list[ExcludedRequestOut]


class ReplicaPointOut(Schema):
    replicas: int
    status: CandidateStatus
    reason: str
    values_s: dict[str, float] = Field(description="By `metric:percentile`; empty where it is saturated.")
    split_s: dict[str, float]
    utilisation: float


class PolicyOut(Schema):
    policy: Literal["decode-first", "prefill-first", "fair-share"]
    status: CandidateStatus
    reason: str
    values: dict[str, float]
    worst_margin: float | None
    gain: float | None = Field(description="Of the worst margin, over the shown configuration's.")
    expressible: bool = Field(
        description="Whether the engine can be told to; if not, it is never recommended."
    )
    flags: list[str]
    note: str


class LimitOut(Schema):
    what: str
    share: float
    words: str


class WhyOut(Schema):
    latency_budget_s: dict[str, float] = Field(description="Means by phase.")
    work: list[dict[str, Any]] = Field(description="Busy seconds of each pool by kind of step.")
    limits: list[LimitOut] = Field(description="What is nearly used up, the most used first.")
    curve_percentiles: list[float]
    curves_s: dict[str, list[float]] = Field(description="Seconds by metric, at `curve_percentiles`.")


class LoadPointOut(Schema):
    load: float = Field(description="Times the traffic's own rate.")
    status: CandidateStatus
    values_s: dict[str, float]
    utilisation: float
    failing: list[str]


class BreakingOut(Schema):
    points: list[LoadPointOut]
    holds_up_to: float | None
    breaks_at: float | None
    first: str | None = Field(description="The objective that fails first, or `saturated`.")


class SensitivityOut(Schema):
    what: str
    change: str
    status: CandidateStatus
    worst_margin: float | None
    harm: float | None = Field(description="What the change takes from the worst margin; null: saturated.")
    fails: list[str]


class ReliefOut(Schema):
    limits: dict[str, float] | None = Field(
        description="Limits [s] with which `relaxed` would meet everything."
    )
    relaxed: DeploymentOut | None
    replicas: int | None = Field(description="On so many replicas `hardware` meets the objectives as asked.")
    hardware: DeploymentOut | None


class PeriodsOut(Schema):
    by: Literal["hours", "parts"]
    parts: int
    first_request_s: float = Field(description="Time of day of the traffic's first request.")


class PeriodWindowOut(Schema):
    period: int
    day: int
    start_s: float = Field(description="After the first request.")
    end_s: float


class WindowNeedOut(Schema):
    """One stretch of the traffic, on its own clock."""

    window: PeriodWindowOut
    requests: int
    replicas: int | None = Field(description="The least that hold; null: none up to `most_replicas` does.")
    prefill_replicas: int = Field(description="Of two pools: so many of them prefill.")
    status: CandidateStatus
    reason: str
    values_s: dict[str, float] = Field(description="By `metric:percentile`, of the requests of the period.")
    claimed: bool


class PeriodOut(Schema):
    start_s: float = Field(description="Of the day for hours, of the traffic for parts.")
    end_s: float
    requests: int
    rate_per_s: float
    worst: int = Field(description="The day that decides; 0: the first.")
    need: WindowNeedOut
    days: list[WindowNeedOut]


class PlanScheduleOut(Schema):
    """Replicas by time of day. What switching takes (drain, start-up) is not in it."""

    periods: PeriodsOut
    needs: list[PeriodOut]
    planned_replicas: int = Field(description="Of the plan's answer for the whole traffic.")
    constant_replicas: int | None = Field(description="What the busiest period needs, all day.")
    replica_hours: float | None
    constant_replica_hours: float | None
    saved_share: float | None = Field(description="Of the constant number's replica-hours.")
    cost: float | None = Field(description="Of one pass through the periods.")
    constant_cost: float | None
    most_replicas: int
    run_in_s: float
    assumed: list[str]


class PlanResultOut(Schema):
    complete: bool = Field(description="false when it was cancelled: the verdict covers what was tried.")
    searching: bool = Field(
        False, description="What is known so far of a search that goes on; not `complete`."
    )
    summary: SummaryOut
    verdict: VerdictOut
    trade: TradeAxesOut
    by_replicas: list[ReplicaPointOut] = Field(
        [], description="The choice, or the closest, on other numbers of replicas."
    )
    policies: list[PolicyOut] = Field([], description="The three generic policies on the shown deployment.")
    why: WhyOut | None = None
    other_why: WhyOut | None = None
    breaking: BreakingOut | None = Field(None, description="The load at which the first objective fails.")
    sensitivities: list[SensitivityOut] = Field([], description="The most harmful change first.")
    relief: ReliefOut | None = Field(None, description="Where nothing meets the objectives: what would help.")
    schedule: PlanScheduleOut | None = Field(
        None, description="null: not asked for, or the traffic is short."
    )
    excluded: ExcludedOut
    inputs: dict[str, Any] = Field(description="All it takes to ask again.")
    content_hash: str = Field(description="Identifies the question: SHA-256 of `inputs`.")
    answer_hash: str | None = Field(
        None, description="SHA-256 of the whole result, its schedule included: asked again, it is the same."
    )
    made_with: dict[str, str] | None = Field(
        None, description="Versions that the answer may depend on; `simulator` is a digest of its sources."
    )
