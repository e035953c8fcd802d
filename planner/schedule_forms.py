"""The fields of a plan that ask for a schedule by time of day, and what they amount to."""

from __future__ import annotations

from datetime import time
from typing import Any, cast

from django import forms

from planner.search.periods import DEFAULT_PARTS, LONG_S, MOST_PARTS, Asked, Kind

KINDS: list[tuple[str, str]] = [
    ("auto", f"by the hour, if the traffic lasts more than {LONG_S / 3600:.0f} hours"),
    ("none", "none"),
    ("hours", "by the hour of the day"),
    ("parts", "by equal parts of the traffic"),
]
SCHEDULE = ("schedule", "schedule_parts", "first_request_at")


class ScheduleFields(forms.Form):
    """How many replicas when; the rest of the configuration stays the plan's answer."""

    schedule = forms.ChoiceField(
        choices=KINDS, required=False, initial="auto", label="Schedule",
        help_text="Replicas by time of day, beside the answer for all of the traffic.",
    )  # fmt: skip
    schedule_parts = forms.IntegerField(
        required=False, min_value=2, max_value=MOST_PARTS, label="Parts",
        help_text=f"Of equal length ({DEFAULT_PARTS}).",
    )  # fmt: skip
    first_request_at = forms.TimeField(
        required=False, input_formats=["%H:%M", "%H:%M:%S"], label="First request at",
        help_text="Its time of day, such as 09:30; midnight unless given.",
        widget=forms.TimeInput(attrs={"placeholder": "00:00"}),
    )  # fmt: skip

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        kind = data.get("schedule") or "auto"
        if data.get("schedule_parts") is not None and kind != "parts":
            self.add_error("schedule_parts", "Goes with a schedule by equal parts.")
        if data.get("first_request_at") and kind in ("parts", "none"):
            self.add_error("first_request_at", "Goes with a schedule by the hour.")
        return data

    def asked_schedule(self, data: dict[str, Any]) -> Asked:
        """`data`: cleaned."""
        at: time | None = data.get("first_request_at")
        seconds = 0.0 if at is None else at.hour * 3600.0 + at.minute * 60.0 + at.second
        return Asked(
            cast(Kind, data.get("schedule") or "auto"), data.get("schedule_parts") or DEFAULT_PARTS, seconds
        )


def asked_words(asked: Asked) -> str:
    """`by the hour of the day, the first request at 09:30`."""
    said = (
        f"in {asked.parts:,} equal parts of the traffic" if asked.kind == "parts" else dict(KINDS)[asked.kind]
    )
    at = asked_again(asked).get("first_request_at")
    return f"{said}; the first request at {at}" if at else said


def asked_again(asked: Asked) -> dict[str, Any]:
    """What differs from the fields' defaults, in the API's words."""
    found: dict[str, Any] = {}
    if asked.kind != "auto":
        found["schedule"] = asked.kind
    if asked.parts != DEFAULT_PARTS:
        found["schedule_parts"] = asked.parts
    if asked.first_request_s:
        minutes, seconds = divmod(round(asked.first_request_s), 60)
        found["first_request_at"] = f"{minutes // 60:02d}:{minutes % 60:02d}" + (
            f":{seconds:02d}" if seconds else ""
        )
    return found
