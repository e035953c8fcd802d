"""The form of a what-if: a place for every slider, validated for page and API alike. What is left empty stands where
the plan stands."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.plan_fields import ObjectivesField, number
from planner.search import Objective, ObjectiveError, check_objectives
from planner.search.limit_parts import limit_parts, with_limits
from planner.search.neighbours import MOST_REPLICAS
from planner.search.what_if import Reopened, Setting, SettingError, candidate_at, check_setting

MOST_TOKENS = 1 << 20
SAME = 1e-5  # relative: a start that was shown rounded and came back is the start


def whole(label: str, least: int, most: int, help_text: str) -> forms.IntegerField:
    return forms.IntegerField(
        required=False, min_value=least, max_value=most, label=label, help_text=help_text
    )


class WhatIfForm(forms.Form):
    """Objectives come as ``objectives`` (the API's way) or as ``limit_ms_0``, ``limit_ms_1_ttft``, … (limit_parts)."""

    objectives = ObjectivesField(required=False)
    rate_multiplier = number("Rate", 0.001, 1000, "Growth and headroom stay the plan's.")
    budget_tokens = whole("Token budget", 1, MOST_TOKENS, "Of a step, in the prefill pool if there are two.")
    chunk_cap_tokens = whole("Chunk cap", 0, MOST_TOKENS, "Of one prompt in a step; 0: none.")
    max_num_seqs = whole(
        "Sequences", 1, MOST_TOKENS, "That run at once, in the decode pool if there are two."
    )
    replicas = whole("Replicas", 1, MOST_REPLICAS, "")
    prefill_replicas = whole("Prefill of them", 0, MOST_REPLICAS - 1, "P of P : D; 0: all alike.")
    link_gb_per_s = number("Link", 0.001, 1e5, "Between the pools; decimal.")

    def __init__(self, *args: Any, subject: Reopened, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subject = subject
        self.limits = limit_parts(subject.start.objectives)
        for part in self.limits:
            self.fields[part.name] = number(part.label, 0.001, 86_400_000)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not self.errors:
            setting = self._setting(data)
            try:
                check_setting(self.subject, setting)
                candidate_at(self.subject, setting)
            except SettingError as error:
                self.add_error(error.field, error.message)
            data["setting"] = setting
        return data

    def _setting(self, data: dict[str, Any]) -> Setting:
        start = self.subject.start
        values = {
            name: _kept(data.get(name), getattr(start, name))
            for name in ("rate_multiplier", "budget_tokens", "chunk_cap_tokens", "max_num_seqs", "replicas",
                         "prefill_replicas", "link_gb_per_s")
        }  # fmt: skip
        return Setting(objectives=self._objectives(data), **values)

    def _objectives(self, data: dict[str, Any]) -> tuple[Objective, ...]:
        start = self.subject.start.objectives
        try:
            if data.get("objectives"):
                return check_objectives(data["objectives"])
            given = [(part, data.get(part.name)) for part in self.limits]
            return with_limits(
                start, [_kept(None if ms is None else ms / 1000, part.limit_s) for part, ms in given]
            )
        except ObjectiveError as error:
            self.add_error("objectives", error.message)
        return start

    def setting(self) -> Setting:
        setting: Setting = self.cleaned_data["setting"]
        return setting


def _kept(value: Any, start: Any) -> Any:
    """`value`, or the start where nothing was said, or only what rounding made of it."""
    if value is None:
        return start
    if isinstance(value, float) and start and abs(value / start - 1.0) < SAME:
        return start
    return value
