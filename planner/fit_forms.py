"""The form of a fit: which kinds. Shared by the page, the API and the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.conf import settings

from planner import traffic_rows
from planner.models import TrafficJob, TrafficSet
from planner.shape_forms import add_problems
from planner.traffic import TrafficError
from planner.traffic.fitting import (
    FIT_PARTS,
    NOT_IN_SESSIONS,
    SESSION_KINDS,
    Fit,
    FitReport,
    fit,
    not_in_sessions,
)
from planner.traffic.generating import ARRIVALS, LENGTHS

BEST = ("", "those that hold best")


class FitForm(forms.Form):
    """Empty: those that hold best.

    With ``defer`` a traffic of more than IMMEDIATE_FIT_REQUESTS is not fitted: `report` is that of a worker's fit,
    where one has been made, and `deferred` says that there is none yet.
    """

    arrivals = forms.ChoiceField(
        required=False, choices=[BEST, *((key, kind.TITLE) for key, kind in ARRIVALS.items())]
    )
    lengths = forms.ChoiceField(
        required=False, choices=[BEST, *((key, kind.TITLE) for key, kind in LENGTHS.items())]
    )
    sessions = forms.ChoiceField(required=False, choices=[BEST, *SESSION_KINDS.items()])

    def __init__(
        self,
        *args: Any,
        traffic: TrafficSet,
        defer: bool = False,
        on_step: Callable[[int, int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.row, self.defer = traffic, defer
        self.on_step = on_step
        self.found: Fit | None = None
        self.report: FitReport | None = None
        self.made_by: TrafficJob | None = None
        self.deferred = False

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("sessions") == "growing":  # known before a worker is asked
            for part, kind in NOT_IN_SESSIONS.items():
                if data.get(part) == kind:
                    self.add_error(part, not_in_sessions(kind))
        if self.errors:
            return data
        if self.defer and self.row.statistics["requests"] > settings.IMMEDIATE_FIT_REQUESTS:
            self._look_up()
            return data
        try:
            parent = traffic_rows.parent_of(self.row)
            kinds = self.options()
            self.found = fit(
                parent, arrivals=kinds["arrivals"], lengths=kinds["lengths"], sessions=kinds["sessions"],
                on_step=self.on_step,
            )  # fmt: skip
            self.report = self.found.report
        except TrafficError as error:
            add_problems(self, error.errors)
        return data

    def options(self) -> dict[str, str]:
        return {key: self.cleaned_data.get(key) or "" for key in FIT_PARTS}

    def _look_up(self) -> None:
        """A traffic never changes, and a fit draws with a fixed seed: one that is there holds."""
        done = TrafficJob.objects.filter(kind=TrafficJob.FIT, parent=self.row, status=TrafficJob.DONE)
        self.made_by = next((job for job in done if job.options == self.options()), None)
        self.deferred = self.made_by is None
        if self.made_by is not None and self.made_by.result is not None:
            self.report = FitReport.from_dict(self.made_by.result["report"])
