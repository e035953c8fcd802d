"""Forms of traffic: the one place where what people send is validated; pages and API share them
(calibration/forms.py). The form of a plan is in plan_forms.py."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings

from calibration.form_parts import LineField, seed_field
from planner.traffic import PRESETS, Traffic, TrafficError, synthesise
from planner.traffic.cost import generating_s
from planner.traffic_import_forms import UploadTrafficForm, add_traffic_errors

__all__ = ["SynthesiseForm", "UploadTrafficForm", "add_traffic_errors"]


class SynthesiseForm(forms.Form):
    """Traffic made up from a preset. ``defer``: as of ShapeForm."""

    name = LineField(max_length=120, required=False)
    preset = forms.ChoiceField(choices=[(key, preset.title) for key, preset in PRESETS.items()])
    requests = forms.IntegerField(
        required=False, min_value=1, max_value=1_000_000, label="Requests", help_text="Default: the preset's."
    )
    rate_per_s = forms.FloatField(
        required=False,
        min_value=1e-6,
        max_value=1e6,
        label="Rate [requests/s]",
        help_text="Default: the preset's.",
    )
    seed = seed_field()

    def __init__(self, *args: Any, defer: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.defer = defer
        self.deferred = False

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        preset, requests = PRESETS[data["preset"]], data.get("requests")
        try:
            takes_s = (
                generating_s(preset.model(), requests or preset.requests, None, []) if self.defer else 0.0
            )
            self.deferred = takes_s > settings.IMMEDIATE_TRAFFIC_S
            if not self.deferred:
                data["traffic"] = synthesise(
                    data["preset"],
                    requests=requests,
                    rate_per_s=data.get("rate_per_s"),
                    seed=data.get("seed") or 0,
                )
        except TrafficError as error:
            add_traffic_errors(self, error)
        data["default_named"] = not data.get("name")
        data["name"] = data.get("name") or f"{preset.title} (synthetic)"
        return data

    def options(self) -> dict[str, Any]:
        """What another form of the same kind makes the same of: JSON."""
        return {
            key: value for key, value in self.cleaned_data.items() if key != "traffic" and value is not None
        }

    def traffic(self) -> Traffic:
        traffic: Traffic = self.cleaned_data["traffic"]
        return traffic
