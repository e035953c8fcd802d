"""What the API takes and answers about traffic and plans; a plan's result is in result_schemas.py."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any

from ninja import Field, Schema

from calibration.schemas import FreshnessOut
from config.schemas import JobFilters, JobOut, Paging, Payload, Slug, of
from planner.forms import SynthesiseForm
from planner.models import TrafficSet
from planner.plan_forms import PlanForm
from planner.result_schemas import CandidateStatus, PlanResultOut
from planner.review_schemas import StalenessOut


class LengthsOut(Schema):
    p50: float
    mean: float
    p99: float
    max: int


class DispersionOut(Schema):
    window_s: float
    index: float


class StatisticsOut(Schema):
    """Times in seconds, lengths in tokens; null where a figure does not exist (the rate of one request)."""

    rows: int = Field(description="In the file; `requests` of them became requests.")
    requests: int
    duration_s: float
    rate_per_s: float | None = Field(description="(requests - 1) / duration_s.")
    interarrival_cv: float | None
    dispersion: list[DispersionOut] = Field(
        [], description="Variance / mean of the arrivals in windows of this length; Poisson traffic has 1."
    )
    rank_correlation: float | None = Field(None, description="Spearman's, of prompt and output length.")
    prompt_tokens: LengthsOut
    output_tokens: LengthsOut
    tpot_requests: int = Field(description="Requests with at least two output tokens.")
    max_context_tokens: int
    prefix_hit_rate: float | None = None
    block_tokens: int | None = None
    classes: dict[str, int] | None = None


class WarningOut(Schema):
    code: str
    kind: str = Field("noted", description="excluded, repaired, assumed or noted.")
    message: str
    count: int
    lines: list[int] = Field(description="The first few lines of the file it is about.")


class TrafficOut(Schema):
    id: uuid.UUID
    name: str
    project: str
    owner: str
    created_at: datetime
    format: str
    source: str = Field(description="File name or preset.")
    statistics: StatisticsOut
    warnings: list[WarningOut]
    recipe: dict[str, Any] = Field(description="What it takes to make the same traffic again.")


def traffic_out(row: TrafficSet) -> dict[str, Any]:
    return {
        "id": row.pk, "name": row.name, "project": row.project.slug, "owner": row.owner.get_username(),
        "created_at": row.created_at, "format": row.format, "source": row.source,
        "statistics": row.statistics, "warnings": row.warnings, "recipe": row.recipe,
    }  # fmt: skip


class TrafficPage(Schema):
    items: list[TrafficOut]
    count: int


class TrafficFilters(Paging):
    project: Slug | None = None


class TrafficPresetOut(Schema):
    key: str = Field(description="What `preset` means in a payload.")
    title: str
    resembles: str
    rate_per_s: float
    requests: int
    prompt_median_tokens: float
    prompt_cut_tokens: int
    output_median_tokens: float
    output_cut_tokens: int


class SynthesiseIn(Payload):
    project: Slug | None = None
    name: str | None = of(SynthesiseForm, "name")
    preset: str = of(SynthesiseForm, "preset")
    requests: int | None = of(SynthesiseForm, "requests")
    rate_per_s: float | None = of(SynthesiseForm, "rate_per_s")
    seed: int = of(SynthesiseForm, "seed")


class PlanFreshnessOut(FreshnessOut):
    calibration: uuid.UUID


class PlanOut(JobOut):
    calibration: uuid.UUID
    second_calibration: uuid.UUID | None = Field(None, description="Of a second kind of hardware.")
    traffic: uuid.UUID
    objectives: list[str]
    feasible: bool | None = Field(description="null until it is done.")
    unjudged: bool = Field(
        False,
        description="Not feasible, because what comes closest left the region that was measured: nothing is known to "
        "fail.",
    )
    sentence: str = Field(description="The verdict.")
    staleness: StalenessOut | None = Field(description="Null of a plan that is not done.")
    freshness: list[PlanFreshnessOut] = Field(description="Of each calibration it rests on.")


class PlanDetail(PlanOut):
    space: dict[str, Any] = Field(description="Where it looks.")
    conditions: dict[str, Any] = Field(description="Engine, load, link, prices and assumptions.")
    seed: int
    result: PlanResultOut | None
    log: str


class PlanPage(Schema):
    items: list[PlanOut]
    count: int


class PlanFilters(JobFilters):
    feasible: bool | None = Field(None, description="false: with those that could not be judged.")
    unjudged: bool | None = Field(
        None, description="true: only those that could not be judged; false: all others."
    )
    calibration: uuid.UUID | None = None
    traffic: uuid.UUID | None = None


class PlanIn(Payload):
    name: str | None = of(PlanForm, "name")
    calibration: Annotated[uuid.UUID, Field(strict=False)]
    traffic: Annotated[uuid.UUID, Field(strict=False)]
    objectives: list[str] = Field(
        description="Each `[class=]metric:percentile:seconds`; metrics are ttft, itl, tpot, e2e; or `[class=]goodput:"
        "percentile:metric=seconds+metric=seconds`, the share of requests that meet every limit. One without a class "
        "is for all classes that have none of their own. At most 16.",
        examples=[["ttft:p95:1.0", "itl:p99:0.05"], ["goodput:p99:ttft=1.0+tpot=0.05", "batch=e2e:p95:60"]],
    )
    max_replicas: int = of(PlanForm, "max_replicas")
    budgets_tokens: list[int] | None = of(PlanForm, "budgets_tokens")
    chunk_caps_tokens: list[int] | None = of(PlanForm, "chunk_caps_tokens")
    max_num_seqs: list[int] | None = of(PlanForm, "max_num_seqs")
    routers: list[str] | None = of(PlanForm, "routers")
    scheduling: str = of(PlanForm, "scheduling", default="async")
    seed: int = of(PlanForm, "seed")
    engine: str = of(PlanForm, "engine")
    headroom: float = of(PlanForm, "headroom")
    rate_multiplier: float = of(PlanForm, "rate_multiplier")
    growth: float = of(PlanForm, "growth")
    window_start_s: float | None = of(PlanForm, "window_start_s")
    window_end_s: float | None = of(PlanForm, "window_end_s")
    link: str = of(PlanForm, "link")
    link_gb_per_s: float | None = of(PlanForm, "link_gb_per_s")
    link_latency_s: float = of(PlanForm, "link_latency_s")
    link_uncertainty: float = of(PlanForm, "link_uncertainty")
    message_s: float = of(PlanForm, "message_s")
    transfer_chunks_tokens: list[int] | None = of(PlanForm, "transfer_chunks_tokens")
    local_prefill_tokens: list[int] | None = of(PlanForm, "local_prefill_tokens")
    price_per_gpu_hour: float | None = of(PlanForm, "price_per_gpu_hour")
    gpus_per_replica: int | None = of(PlanForm, "gpus_per_replica")
    max_gpus: int | None = of(PlanForm, "max_gpus")
    second_calibration: Annotated[uuid.UUID, Field(strict=False)] | None = of(PlanForm, "second_calibration")
    second_price_per_gpu_hour: float | None = of(PlanForm, "second_price_per_gpu_hour")
    second_gpus_per_replica: int | None = of(PlanForm, "second_gpus_per_replica")
    second_max_gpus: int | None = of(PlanForm, "second_max_gpus")
    front_end_s: float = of(PlanForm, "front_end_s")
    front_end_s_per_token: float = of(PlanForm, "front_end_s_per_token")
    network_s: float = of(PlanForm, "network_s")
    host_gap_s: float = of(PlanForm, "host_gap_s")
    prefix_hits: str = of(PlanForm, "prefix_hits")
    hit_share: float | None = of(PlanForm, "hit_share")
    assumed_max_tokens: int | None = of(PlanForm, "assumed_max_tokens")
    schedule: str = of(PlanForm, "schedule")
    schedule_parts: int | None = of(PlanForm, "schedule_parts")
    first_request_at: str | None = of(PlanForm, "first_request_at")


class CandidateFilters(Paging):
    status: CandidateStatus | None = None
