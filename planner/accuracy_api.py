"""The API's way to the accuracy page."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from config.errors import answers
from config.schemas import Paging
from planner import accuracy

router = Router()


class AccuracyLineOut(Schema):
    """One percentile of a replay [s]. `error` = predicted / measured - 1; `bar` null: shown only."""

    label: str
    predicted_s: float
    measured_s: float
    error: float
    bar: float | None
    holds: bool | None
    spread: float | None = Field(description="Of repeated runs: (largest - smallest) / median; null of one.")


class AccuracyReplayOut(Schema):
    verification: uuid.UUID
    plan: uuid.UUID
    kind: Literal["replay", "endpoint", "mixed_load"]
    device: str
    finished_at: datetime | None
    requests: int
    replays: int
    holds: bool | None
    sentence: str
    busy_bias: float | None = Field(description="Predicted / measured busy time - 1.")
    lines: list[AccuracyLineOut]


class ReferenceFigureOut(Schema):
    name: str
    value: float | None
    unit: str = Field(description='"share": of 1.')
    bar: float | None
    holds: bool | None


class ReferenceDataOut(Schema):
    file: str
    bytes: int
    sha256: str


class ReferenceOut(Schema):
    """One check that was run on recorded data: written by `manage.py reference_results`, not by hand."""

    name: str
    title: str
    group: str
    command: str
    date: str
    commit: str = Field(description="A + at its end: files had changed since.")
    exit_code: int = Field(description="0: it holds; 1: below its bars.")
    cpu_s: float
    data: list[ReferenceDataOut]
    figures: list[ReferenceFigureOut]


class AccuracyOut(Schema):
    verifications: list[AccuracyReplayOut]
    count: int = Field(description="Of all verifications that are done.")
    judged: int = Field(description="Of those, held against bars.")
    holding: int = Field(description="Of those, as predicted.")
    cut_short: int = Field(
        description="Further ones that failed, broke off or were stopped: nothing was judged."
    )
    reference: list[ReferenceOut]


@router.get("/accuracy", response=answers({200: AccuracyOut}), operation_id="get_accuracy")
def get_accuracy(request: HttpRequest, paging: Query[Paging]) -> dict[str, Any]:
    """Every verification in your projects, newest first, and the reference results of this version."""
    rows = accuracy.verified(request.user)
    counts = accuracy.counts(rows, request.user)
    replays = [
        {
            "verification": row.pk, "plan": row.plan_id, "kind": row.kind, "device": row.calibration.device,
            "finished_at": row.finished_at, "requests": row.requests, "replays": row.replays, "holds": row.holds,
            "sentence": row.sentence, "busy_bias": row.result.get("busy_bias"), "lines": accuracy.lines_of(row),
        }
        for row in paging.slice(rows)
    ]  # fmt: skip
    reference = [row.to_dict() for group in accuracy.reference_groups() for row in group.checks]
    return {"verifications": replays, "count": counts["all"], "judged": counts["judged"],
            "holding": counts["holding"], "cut_short": counts["cut_short"], "reference": reference}  # fmt: skip
