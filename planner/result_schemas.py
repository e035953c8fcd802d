"""A plan's result as the API answers it: the stored JSON of planner/search/result.py, typed."""

from __future__ import annotations

from typing import Any, Literal

from ninja import Field, Schema

CandidateStatus = Literal["meets", "fails", "not covered", "saturated", "invalid", "not tried"]


class KnobsOut(Schema):
    """By vLLM's names, with the KV pool they were simulated with."""

    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int = Field(description="0: no cap on a chunk.")
    async_scheduling: bool
    block_size: int
    num_blocks: int


class PredictionOut(Schema):
    """Seconds. `margin` is the share of the limit that is left."""

    metric: Literal["ttft", "itl", "tpot", "e2e"]
    percentile: float
    limit: float
    predicted: float | None = Field(description="null where there is no latency to give, as when saturated.")
    margin: float | None = None
    low: float | None = Field(None, description="90 % interval, finalists only.")
    high: float | None = None
    samples: int | None = None
    requests: int | None = None
    claimed: bool | None = Field(None, description="Whether enough samples stand behind the percentile.")


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


class TriedOut(Schema):
    replicas: int
    status: CandidateStatus
    reason: str


class TradePointOut(Schema):
    ttft_s: float | None
    itl_s: float | None
    status: CandidateStatus
    reason: str


class CandidateOut(Schema):
    knobs: KnobsOut
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


class FinalistOut(Schema):
    deployment: Literal["aggregated"]
    replicas: int
    knobs: KnobsOut
    status: CandidateStatus
    reason: str
    objectives: list[PredictionOut]
    behaviour: BehaviourOut
    flags: list[str] = Field(description="Of `vllm serve`.")
    warnings: list[str]
    refits: int = Field(
        description="Refits of the step-time model it was simulated with; `holding` met everything."
    )
    holding: int


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


class DeploymentOut(Schema):
    deployment: Literal["aggregated"]
    replicas: int
    knobs: KnobsOut


class SummaryOut(Schema):
    """The answer in one small object: what `manage.py plan --json` prints."""

    feasible: bool
    sentence: str
    deployment: Literal["aggregated"]
    replicas: int | None
    knobs: KnobsOut | None
    objectives: list[PredictionOut]
    binding: str | None
    flags: list[str]
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


class PlanResultOut(Schema):
    complete: bool = Field(description="false when it was cancelled: the verdict covers what was tried.")
    summary: SummaryOut
    verdict: VerdictOut
    trade: TradeAxesOut
    by_replicas: list[ReplicaPointOut] = Field(
        [], description="The choice, or the closest, on other numbers of replicas."
    )
    excluded: ExcludedOut
    inputs: dict[str, Any] = Field(description="All it takes to ask again.")
    content_hash: str = Field(description="Identifies the question.")
