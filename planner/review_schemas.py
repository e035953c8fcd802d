"""What the API answers about a plan under newer step times."""

from __future__ import annotations

import uuid
from typing import Literal

from ninja import Field, Schema


class ObjectiveChangeOut(Schema):
    """One objective of the recommended configuration, under its own step times and the newer ones [s]; of a `joint`
    one shares of its limits."""

    label: str
    limit_s: float
    then_s: float | None
    now_s: float | None = Field(description="Null where it has no latency: saturated, or not measured.")
    joint: bool = False


class KnobChangeOut(Schema):
    name: str
    then: str
    now: str


class DifferenceOut(Schema):
    outcome: Literal["same answer", "answer changed", "choice no longer holds"]
    sentence: str
    then: str = Field(description="The recommended configuration; empty where there was none.")
    now: str = Field(description="What would be recommended near it; empty where nothing holds.")
    objectives: list[ObjectiveChangeOut]
    changes: list[KnobChangeOut]


class StalenessOut(Schema):
    """Whether a plan's answer stands under the newest step times of its subject."""

    state: Literal[
        "current", "checking", "same answer", "answer changed", "choice no longer holds", "unclear"
    ]
    stale: bool
    sentence: str
    calibration: uuid.UUID | None = Field(description="The newer one it was looked at under.")
    difference: DifferenceOut | None
    replan: uuid.UUID | None = Field(description="The plan that was made again.")
