"""What the API takes and answers about traffic and plans; a plan's result is in result_schemas.py."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any

from ninja import Field, Schema

from config.schemas import JobFilters, JobOut, Paging, Payload, Slug, of
from planner.forms import PlanForm, SynthesiseForm, UploadTrafficForm
from planner.result_schemas import CandidateStatus, PlanResultOut


class LengthsOut(Schema):
    p50: float
    mean: float
    p99: float
    max: int


class StatisticsOut(Schema):
    """Times in seconds, lengths in tokens; null where a figure does not exist (the rate of one request)."""

    rows: int = Field(description="In the file; `requests` of them became requests.")
    requests: int
    duration_s: float
    rate_per_s: float | None = Field(description="(requests - 1) / duration_s.")
    interarrival_cv: float | None
    prompt_tokens: LengthsOut
    output_tokens: LengthsOut
    tpot_requests: int = Field(description="Requests with at least two output tokens.")
    max_context_tokens: int
    prefix_hit_rate: float | None = None
    block_tokens: int | None = None
    classes: dict[str, int] | None = None


class WarningOut(Schema):
    code: str
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


class UploadTrafficIn(Payload):
    # Multipart values are text: the form reads the numbers.
    model_config = {"strict": False}

    project: Slug | None = None
    name: str | None = of(UploadTrafficForm, "name")
    rate_per_s: float | None = of(UploadTrafficForm, "rate_per_s")
    interarrival_cv: float | None = of(UploadTrafficForm, "interarrival_cv")
    max_model_len: int | None = of(UploadTrafficForm, "max_model_len")
    time_unit: str | None = of(UploadTrafficForm, "time_unit")
    decimal: str | None = of(UploadTrafficForm, "decimal")
    zero_outputs: str | None = of(UploadTrafficForm, "zero_outputs")
    spread_grid: bool | None = of(UploadTrafficForm, "spread_grid")
    seed: int = of(UploadTrafficForm, "seed")


class SynthesiseIn(Payload):
    project: Slug | None = None
    name: str | None = of(SynthesiseForm, "name")
    preset: str = of(SynthesiseForm, "preset")
    requests: int | None = of(SynthesiseForm, "requests")
    rate_per_s: float | None = of(SynthesiseForm, "rate_per_s")
    seed: int = of(SynthesiseForm, "seed")


class PlanOut(JobOut):
    calibration: uuid.UUID
    traffic: uuid.UUID
    objectives: list[str]
    feasible: bool | None = Field(description="null until it is done.")
    sentence: str = Field(description="The verdict.")


class PlanDetail(PlanOut):
    space: dict[str, Any] = Field(description="Where it looks.")
    seed: int
    result: PlanResultOut | None
    log: str


class PlanPage(Schema):
    items: list[PlanOut]
    count: int


class PlanFilters(JobFilters):
    feasible: bool | None = None
    calibration: uuid.UUID | None = None
    traffic: uuid.UUID | None = None


class PlanIn(Payload):
    name: str | None = of(PlanForm, "name")
    calibration: Annotated[uuid.UUID, Field(strict=False)]
    traffic: Annotated[uuid.UUID, Field(strict=False)]
    objectives: list[str] = Field(
        description="Each `metric:percentile:seconds`; metrics are ttft, itl, tpot, e2e.",
        examples=[["ttft:p95:1.0", "itl:p99:0.05"]],
    )
    max_replicas: int = of(PlanForm, "max_replicas")
    budgets_tokens: list[int] | None = of(PlanForm, "budgets_tokens")
    chunk_caps_tokens: list[int] | None = of(PlanForm, "chunk_caps_tokens")
    max_num_seqs: list[int] | None = of(PlanForm, "max_num_seqs")
    scheduling: str = of(PlanForm, "scheduling", default="async")
    seed: int = of(PlanForm, "seed")


class CandidateFilters(Paging):
    status: CandidateStatus | None = None
