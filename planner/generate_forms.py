"""The form of traffic made up from a model: one validation for the page, the API and the command."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings

from accounts.models import Project
from calibration.form_parts import JsonTextField, LineField, seed_field
from planner import traffic_rows
from planner.models import TrafficSet
from planner.shape_forms import add_problems, is_uuid
from planner.traffic import Traffic, TrafficError
from planner.traffic.cost import READ_S, generating_s, values_stated
from planner.traffic.generating import SyntheticModel, generate, parse_model
from planner.traffic.shaping import Parent


class GenerateForm(forms.Form):
    """``model``: arrivals, lengths and sessions as an object, or its JSON. Errors stand under "model.PART.FIELD".
    ``defer``: as of ShapeForm."""

    name = LineField(
        max_length=120, required=False, label="Name", help_text="Default: after the kinds chosen."
    )
    requests = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=1_000_000,
        label="Requests",
        help_text="Either so many, or a duration.",
    )
    duration_s = forms.FloatField(
        required=False, min_value=0.001, max_value=3.2e8, label="Duration [s]",
        help_text="All requests that come within it.",
    )  # fmt: skip
    seed = seed_field()
    model = JsonTextField(required=False)

    def __init__(self, *args: Any, project: Project, user: Any, defer: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project, self.user, self.defer = project, user, defer
        self.deferred = False
        self.parsed: SyntheticModel | None = None

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        try:
            self.parsed = model = parse_model(data.get("model"))
            # What it draws from lies in the project it goes to, so that nobody learns of another's traffic.
            rows = TrafficSet.objects.visible_to(self.user).filter(
                project=self.project, pk__in=[one for one in model.traffics if is_uuid(one)]
            )
            reading_s = READ_S * sum(values_stated(row.statistics) for row in rows)
            self.deferred = self.defer and reading_s > settings.IMMEDIATE_TRAFFIC_S
            if not self.deferred:
                others = [traffic_rows.parent_of(row) for row in rows]
                self._make(data, model, others, reading_s)
            kinds = f"{model.arrivals.TITLE} × {model.lengths.TITLE}{' × sessions' if model.sessions else ''}"
            data["default_named"] = not data.get("name")
            data["name"] = data.get("name") or f"{kinds} (synthetic)"
        except TrafficError as error:
            add_problems(self, error.errors)
        return data

    def _make(
        self, data: dict[str, Any], model: SyntheticModel, others: list[Parent], reading_s: float
    ) -> None:
        requests, duration_s = data.get("requests"), data.get("duration_s")
        if self.defer and (requests is None) != (duration_s is None):
            takes_s = reading_s + generating_s(model, requests, duration_s, others)
            self.deferred = takes_s > settings.IMMEDIATE_TRAFFIC_S
        if not self.deferred:
            data["traffic"] = generate(
                model, requests=requests, duration_s=duration_s, seed=data.get("seed") or 0, others=others
            )

    def options(self) -> dict[str, Any]:
        """What another form of the same kind makes the same of: JSON."""
        given = {key: self.cleaned_data.get(key) for key in ("name", "requests", "duration_s", "seed")}
        model = self.parsed.to_dict() if self.parsed is not None else None
        return {**{key: value for key, value in given.items() if value is not None}, "model": model}

    def traffic(self) -> Traffic:
        traffic: Traffic = self.cleaned_data["traffic"]
        return traffic
