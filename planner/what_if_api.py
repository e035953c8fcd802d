"""The API's what-if: one setting of a finished plan, simulated while the client waits. Nothing is stored."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from accounts import limits
from accounts.access import get_visible
from config.errors import ApiError, answers, conflict, form_error
from config.schemas import Payload, form_data, of
from planner.result_schemas import (
    BehaviourOut,
    CandidateStatus,
    Deployment,
    EngineName,
    KindNumber,
    Knobs,
    LimitOut,
    PredictionOut,
    SplitOut,
)
from planner.search.what_if import MOST_REQUESTS, WhatIf, Window
from planner.what_if import NO_INTERVAL, answer, around
from planner.what_if_forms import WhatIfForm
from planner.what_if_subject import NotAskable, Opened, askable, opened
from planner.what_if_turns import Busy, Overtaken

router = Router()


class WhatIfIn(Payload):
    """What is left out stands where the plan stands."""

    objectives: list[str] | None = Field(
        None, description="Each `metric:percentile:seconds`; default: the plan's own.", max_length=20
    )
    rate_multiplier: float | None = of(WhatIfForm, "rate_multiplier")
    budget_tokens: int | None = of(WhatIfForm, "budget_tokens")
    chunk_cap_tokens: int | None = of(WhatIfForm, "chunk_cap_tokens")
    max_num_seqs: int | None = of(WhatIfForm, "max_num_seqs")
    replicas: int | None = of(WhatIfForm, "replicas")
    prefill_replicas: int | None = of(WhatIfForm, "prefill_replicas")
    link_gb_per_s: float | None = of(WhatIfForm, "link_gb_per_s")
    neighbours: bool = Field(False, description="Also one step of each knob each way.")


class SettingOut(Schema):
    objectives: list[str]
    rate_multiplier: float = Field(description="Times the traffic's own; growth and headroom are the plan's.")
    budget_tokens: int
    chunk_cap_tokens: int
    max_num_seqs: int
    replicas: int
    prefill_replicas: int
    link_gb_per_s: float | None


class WindowOut(Schema):
    """The busiest stretch, from empty queues; seconds after the first request at the traffic's own rate."""

    count: int
    of: int
    from_s: float
    to_s: float


class SettingAnswerOut(Schema):
    setting: SettingOut
    deployment: Deployment
    engine: EngineName
    replicas: int
    kind: KindNumber = 0
    split: SplitOut | None
    knobs: Knobs
    status: CandidateStatus
    reason: str
    warnings: list[str]
    gpus: int
    cost_per_hour: float | None
    requests: int = Field(description="That were simulated.")
    objectives: list[PredictionOut] = Field(description=f"As the search judges them. {NO_INTERVAL}")
    behaviour: BehaviourOut | None = Field(description="null where nothing was simulated.")
    limits: list[LimitOut] = Field(description="What is nearly used up, the most used first.")
    curve_percentiles: list[float]
    curves_s: dict[str, list[float]] = Field(
        description="Seconds by metric, at `curve_percentiles`; empty when saturated."
    )


class NeighbourOut(Schema):
    knob: str = Field(description="A field of `setting`.")
    before: int
    after: int
    answer: SettingAnswerOut


class WhatIfOut(Schema):
    start: SettingOut = Field(description="Where the plan stands.")
    window: WindowOut | None = Field(
        description=f"null: all requests; of more than {MOST_REQUESTS:,} a part is simulated."
    )
    remarks: list[str] = Field(
        description="What keeps the start from being the plan's own numbers, if anything."
    )
    answer: SettingAnswerOut
    neighbours: list[NeighbourOut]


@router.post(
    "/plans/{uuid:pk}/what-if", response=answers({200: WhatIfOut}, 404, 409, 413, 415), operation_id="what_if",
    tags=["plans"],
)  # fmt: skip
def what_if(request: HttpRequest, pk: uuid.UUID, payload: WhatIfIn) -> dict[str, Any]:
    """The plan's shown configuration in another setting, by the search's own simulation; nothing is stored.
    One at a time per user: 409 when a newer one of yours overtakes it, or when the plan has no answer to start from;
    429 when no turn comes within 2 s, or too often."""
    plan = get_visible(askable(), request.user, pk)
    try:
        there = opened(plan)
    except NotAskable as error:
        raise conflict(str(error)) from error
    form = WhatIfForm(form_data(payload, "neighbours"), subject=there.subject)
    if not form.is_valid():
        raise form_error(form)
    limits.spend(limits.WHAT_IF, str(request.user.pk))
    try:
        found = answer(there, form.setting(), request.user)
        beside = around(there, form.setting(), request.user) if payload.neighbours else []
    except Overtaken as error:
        raise conflict(str(error)) from error
    except Busy as error:
        raise ApiError(429, str(error), headers={"Retry-After": "1"}) from error
    return _out(there, found, beside)


def _out(there: Opened, found: WhatIf, beside: Any) -> dict[str, Any]:
    window: Window | None = there.subject.window
    return {
        "start": there.subject.start.to_dict(),
        "window": window and {name: getattr(window, name) for name in ("count", "of", "from_s", "to_s")},
        "remarks": list(there.remarks),
        "answer": found.to_dict(),
        "neighbours": [
            {"knob": n.knob, "before": n.before, "after": n.after, "answer": each.to_dict()} for n, each in beside
        ],
    }  # fmt: skip
