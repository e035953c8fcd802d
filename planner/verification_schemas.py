"""What the API says of verifications, and what it takes to start one."""

from __future__ import annotations

import uuid
from typing import Any

from ninja import Field, Schema

from config.schemas import JobFilters, JobOut, Payload, job_fields, of
from planner.models import Verification
from planner.verification_forms import EndpointForm, MixedLoadForm, VerifyForm


class VerifyIn(Payload):
    requests: int = of(VerifyForm, "requests")
    replays: int = of(VerifyForm, "replays")
    load: float | None = of(VerifyForm, "load")
    seed: int = of(VerifyForm, "seed")


class EndpointIn(Payload):
    base_url: str = of(EndpointForm, "base_url")
    model: str = of(EndpointForm, "model")
    api_key: str = of(EndpointForm, "api_key", default="")
    vocabulary: int | None = of(EndpointForm, "vocabulary")
    replicas: int = of(EndpointForm, "replicas")
    requests: int = of(EndpointForm, "requests")
    load: float | None = of(EndpointForm, "load")
    silence_s: float = of(EndpointForm, "silence_s")
    seed: int = of(EndpointForm, "seed")


class MixedLoadIn(Payload):
    prompt_tokens: int | None = of(MixedLoadForm, "prompt_tokens")
    output_tokens: int | None = of(MixedLoadForm, "output_tokens")
    streams: int | None = of(MixedLoadForm, "streams")
    replays: int = of(MixedLoadForm, "replays")
    grid: bool = of(MixedLoadForm, "grid", default=False)
    seed: int = of(MixedLoadForm, "seed")


class LineOut(Schema):
    """One percentile [s]. `error` = predicted / measured - 1; `bar` is what it is held to, null: shown only."""

    label: str
    metric: str
    percentile: float
    predicted_s: float
    predicted_low_s: float
    predicted_high_s: float
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    error: float
    within: bool = Field(description="The two 90 % intervals meet.")
    bar: float | None
    spread: float | None = Field(description="Of repeated replays: (largest - smallest) / median.")
    at_speed_s: float | None = Field(
        None, description="Predicted at the speed that the device had meanwhile; null: that is not known."
    )
    holds: bool


class ResidualOut(Schema):
    kind: str
    tokens_from: int
    tokens_to: int
    steps: int
    busy_share: float
    error: float = Field(description="Measured / predicted - 1.")


class SpeedOut(Schema):
    """Of steps of the calibration, timed beside a replay: how much longer they took than when it was made."""

    change: float = Field(description="Now / then - 1.")
    low: float = Field(description="Of an interval that holds 19 of 20.")
    high: float
    steps: int
    repeats: int = Field(description="Of each step.")


class ClientOut(Schema):
    """What the load generator saw of a server."""

    requests: int
    answered: int
    errors: dict[str, int] = Field(description="Requests that failed, by reason.")
    lag: dict[str, float | None] = Field(description="How late the client itself sent [s]: p50, p99, p100.")
    offered_per_s: float
    achieved_per_s: float
    doubts: list[str]


class HandOffsOut(Schema):
    """KV caches that were moved between two pools' engines, each alone."""

    count: int
    bytes: float
    over: str
    plans_link: str = Field(description="The link of the plan, over which none of this went.")
    median_s: float | None
    error: float | None = Field(
        description="Predicted / measured time - 1, by what was measured before the replay."
    )
    computed_twice: int = Field(description="Tokens that both pools computed.")
    differing: int = Field(description="Those of them that came out another.")


class StepsOut(Schema):
    """Of two pools their own; of one engine those with prefill and those of decodes alone."""

    prefill: int
    decode: int


class PartialOut(Schema):
    """Of a run that broke off, or was asked to stop; of mixed load of the way in which it did, whose words then are
    there."""

    finished: int = Field(description="Requests.")
    of: int
    steps: StepsOut | None = Field(description="Null: of a running server.")
    hand_offs: int | None = Field(description="Between two pools; null: there was one engine.")
    ended: str = Field(description="Why.")
    way: str | None = Field(None, description="Of mixed load: how the prompts were served when it broke off.")
    case: str | None = None
    ways_done: int | None = Field(None, description="Of mixed load: ways of which every repeat was run.")
    ways: int | None = None
    repeats_done: int | None = Field(None, description="Of the way in which it broke off.")


class ServedOut(Schema):
    """One way to serve long prompts beside streams: gaps of the streams (p50, p95, p99), median TTFT of the prompts."""

    prompt_tokens: int
    output_tokens: int
    streams: int
    way: str
    chunk_tokens: int = Field(description="0: the prompt whole.")
    apart: bool = Field(description="In a pool of its own.")
    gaps: int
    repeats: int | None = Field(None, description="Runs of it; fewer than asked where it broke off there.")
    lines: list[LineOut]


class VerificationResult(Schema):
    """`residuals` to `contended_share`: of replays; `hand_offs`: of two pools. `failed`, `measured`: of a running
    server. With `partial` it broke off or was stopped: nothing is judged, and of mixed load `served` are the ways done
    by then."""

    lines: list[LineOut]
    residuals: list[ResidualOut] | None = None
    busy_bias: float | None = Field(
        None, description="Predicted / measured busy time - 1, on the batches that ran."
    )
    busy_bar: float | None = None
    requests: int
    steps: int | None = None
    replays: int | None = None
    contended_share: float | None = None
    speed: SpeedOut | None = Field(
        None,
        description="Of the device beside the replays; null: of two pools, or too few steps were calibrated.",
    )
    step_spread: float | None = Field(
        None, description="How far off steps were, by time: log, root mean square."
    )
    points: list[dict[str, Any]] | None = Field(None, description="Steps worth measuring anew.")
    failed: int | None = None
    measured: ClientOut | None = None
    device_kind: str | None = Field(
        None,
        description="Of a running server: the kind of device that its step times are of, whose bars apply.",
    )
    bars: str | None = Field(None, description="Those bars in words.")
    device: str | None = Field(None, description="That device.")
    hand_offs: HandOffsOut | None = None
    partial: PartialOut | None = None
    served: list[ServedOut] | None = Field(None, description="Of mixed load: every way of every case.")
    left_out: list[str] | None = Field(None, description="Cases of the grid that were not measured, and why.")
    over: str | None = Field(None, description="Of mixed load: what carried KV between the pools.")
    sentence: str
    advice: list[str]
    holds: bool
    first: int | None = Field(None, description="Position of the window among the replica's requests.")
    of: int | None = None
    held_per_s: float | None = Field(
        None, description="Requests/s that one replica serves for long, as predicted."
    )
    rate_per_s: float | None = Field(None, description="Requests/s of the window.")


class VerificationOut(JobOut):
    plan: uuid.UUID
    kind: str = Field(
        description="replay: served on the device; endpoint: by a running server; "
        "mixed_load: long prompts beside short answers."
    )
    requests: int
    replays: int
    load: float | None = Field(description="Share of what a replica holds; null: as the plan's traffic came.")
    base_url: str | None = Field(description="Of the running server.")
    holds: bool | None = Field(description="null until it is done.")
    sentence: str
    result: VerificationResult | None


class StartedOut(Schema):
    """What the residuals of a replay led to: a plan with wider intervals, or a calibration with more points."""

    plan: uuid.UUID | None = None
    step_uncertainty: float | None = Field(
        None, description="Joined to the steps' own, one standard deviation."
    )
    calibration: uuid.UUID | None = None
    points: int | None = Field(None, description="Mispriced steps among its points.")


class VerificationPage(Schema):
    items: list[VerificationOut]
    count: int


class SentOut(Schema):
    """One request to a running server. Seconds; null: it never came to that."""

    request: int = Field(description="Position in the window.")
    due_s: float = Field(description="When it was to be sent, from the run's begin.")
    lag_s: float | None = Field(description="How late the client itself sent it.")
    ttft_s: float | None = Field(description="From when it was due.")
    tpot_s: float | None = Field(description="Mean gap between tokens, as counted.")
    largest_gap_s: float | None = Field(description="Between two chunks.")
    e2e_s: float | None
    tokens: int = Field(description="By the server's usage where it told, else by chunks.")
    asked_tokens: int
    chunks: int = Field(description="With tokens.")
    status: int | None = Field(description="Of HTTP; null: no answer.")
    error: str


class SentPage(Schema):
    items: list[SentOut]
    count: int


class VerificationFilters(JobFilters):
    plan: uuid.UUID | None = None


def verification_fields(row: Verification) -> dict[str, Any]:
    return {
        **job_fields(row), "plan": row.plan_id, "kind": row.kind, "requests": row.requests, "replays": row.replays,
        "load": row.options.get("load"), "base_url": row.options.get("base_url"),
        "holds": row.holds, "sentence": row.sentence, "result": row.told,
    }  # fmt: skip
