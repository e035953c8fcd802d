"""What a schedule may be: one form for page and API."""

from __future__ import annotations

from datetime import time, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from accounts.models import Project
from calibration import schedules, services
from calibration.calibration_field import DatedCalibrationField
from calibration.form_parts import LineField, seed_field
from calibration.models import Calibration, Schedule
from calibration.occasions import BadRule, Rule

UNITS = {"minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}
LEAST_S, MOST_S = 600, 366 * 86_400
LOOKED_AT = 150  # occasions of an expression: a day of every 10 minutes
NO_PLACES = {"localtime", "Factory"}  # of the time zone database: what they mean is the machine's


class ScheduleForm(forms.Form):
    """Every so long, or by a cron expression: one of the two."""

    name = LineField(max_length=120, required=False, help_text="Default: what it does, and to what.")
    calibration = DatedCalibrationField(
        Calibration.objects.none(),
        help_text="Whose model, device and region; the newest of the same is taken.",
    )
    action = forms.ChoiceField(
        choices=Schedule.ACTIONS, initial=Schedule.CHECK, label="What to do",
        help_text="A check times about six steps again: seconds. Measuring anew takes minutes.",
    )  # fmt: skip
    recalibrate_on_drift = forms.BooleanField(
        required=False, initial=True, label="Measure anew where a check finds drift"
    )
    every = forms.IntegerField(
        min_value=1, max_value=1_000_000, required=False, label="Every",
        help_text="At least 10 minutes, at most a year. Leave empty to give a cron expression.",
    )  # fmt: skip
    unit = forms.ChoiceField(choices=[(name, name) for name in UNITS], initial="hours", required=False)
    cron = LineField(
        max_length=100, required=False, label="Cron expression",
        help_text="Minute, hour, day of month, month, day of week: 30 3 * * mon is Mondays at 3:30. No two of its "
        "times less than 10 minutes apart.",
    )  # fmt: skip
    time_zone = LineField(
        max_length=64, required=False, initial="UTC", help_text="Of cron and window, such as Europe/Berlin."
    )
    window_start = forms.TimeField(
        required=False, label="Window opens", widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
        help_text="When the device may be used. What comes due outside waits; a job still at it is stopped.",
    )  # fmt: skip
    window_end = forms.TimeField(
        required=False, label="Window closes", widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
        help_text="Before it opens: on the next day.",
    )  # fmt: skip
    enabled = forms.BooleanField(required=False, initial=True)

    def __init__(self, *args: Any, user: Any, project: Project | None = None, **options: Any) -> None:
        """`project`: of a schedule that is there already, and stays in it."""
        super().__init__(*args, **options)
        field = self.fields["calibration"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        rows = Calibration.objects.visible_to(user).filter(status=Calibration.DONE).defer("result", "log")
        field.queryset = rows.filter(project=project) if project else rows

    def clean_calibration(self) -> Calibration:
        chosen: Calibration = self.cleaned_data["calibration"]
        if reason := services.why_not_again(chosen):
            raise ValidationError(f"{chosen.name}: {reason}.")
        return chosen

    def clean_time_zone(self) -> str:
        name = self.cleaned_data["time_zone"] or "UTC"
        if name not in available_timezones() - NO_PLACES:
            raise ValidationError(f"No time zone is called {name!r}: they are named like Europe/Berlin.")
        return str(name)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        every, cron = data.get("every"), data.get("cron")
        if not self.has_error("every") and not self.has_error("cron") and bool(every) == bool(cron):
            self.add_error("every", "Give an interval or a cron expression: one of the two.")
        every_s = every and every * UNITS[data.get("unit") or "hours"]
        if every_s and not LEAST_S <= every_s <= MOST_S:
            self.add_error("every", "At least 10 minutes, at most 366 days.")
        start, end = data.get("window_start"), data.get("window_end")
        for given, other, name in ((start, end, "window_end"), (end, start, "window_start")):
            if given is not None and other is None and not self.has_error(name):
                self.add_error(name, "A window has both ends.")
        if start is not None and start == end:
            self.add_error("window_end", "The window is empty: it closes when it opens.")
        self._clean_calibration_for(data)
        if self.errors:
            return data
        window = (start, end) if start is not None and end is not None else None
        self._clean_rule(data, every_s or None, window)
        data["request"] = schedules.ScheduleRequest(
            name=data["name"] or self._default_name(data), calibration=data["calibration"], action=data["action"],
            every_s=every_s or None, cron=cron or "", time_zone=data["time_zone"], window=window,
            enabled=data["enabled"], recalibrate_on_drift=data["recalibrate_on_drift"],
        )  # fmt: skip
        return data

    def _clean_calibration_for(self, data: dict[str, Any]) -> None:
        chosen, action = data.get("calibration"), data.get("action")
        if chosen is None or action is None:
            return
        judge = {
            Schedule.CHECK: services.why_no_drift_check,
            Schedule.RECALIBRATE: schedules.why_not_measured_anew,
        }
        if reason := judge[action](chosen):
            self.add_error("calibration", f"{chosen.name}: {reason}.")

    def _clean_rule(
        self, data: dict[str, Any], every_s: int | None, window: tuple[time, time] | None
    ) -> None:
        """That it comes due at all, and as an interval may not more often than each LEAST_S."""
        now = timezone.now()
        rule = Rule(ZoneInfo(data["time_zone"]), now, every_s, data.get("cron") or "", window)
        try:
            rule.next_after(now)
            if every_s is None and any(
                later - earlier < timedelta(seconds=LEAST_S)
                for earlier, later in pairwise(islice(rule.occasions_after(now), LOOKED_AT))
            ):
                self.add_error("cron", "It comes more often than every 10 minutes.")
        except BadRule as error:
            self.add_error(error.field, str(error))

    @staticmethod
    def _default_name(data: dict[str, Any]) -> str:
        what = dict(Schedule.ACTIONS)[data["action"]]
        return f"{what}: {data['calibration'].name}"[:120]

    def request(self) -> schedules.ScheduleRequest:
        request: schedules.ScheduleRequest = self.cleaned_data["request"]
        return request


def initial_of(row: Schedule) -> dict[str, Any]:
    """A stored schedule as the form shows it: its interval in the largest unit that divides it."""
    unit, every = "minutes", None
    if row.every_s:
        unit = next((name for name in reversed(UNITS) if row.every_s % UNITS[name] == 0), "minutes")
        every = row.every_s // UNITS[unit]
    names = (
        "name",
        "action",
        "recalibrate_on_drift",
        "cron",
        "time_zone",
        "window_start",
        "window_end",
        "enabled",
    )
    return {name: getattr(row, name) for name in names} | {
        "calibration": row.calibration_id, "every": every, "unit": unit,
    }  # fmt: skip


class DriftForm(forms.Form):
    """A drift check by hand."""

    recalibrate = forms.BooleanField(required=False, label="Measure anew where it finds drift")
    seed = seed_field()
