"""The form of shaping: one validation for the page, the API and the command."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.conf import settings

from calibration.form_parts import JsonTextField, LineField, seed_field
from planner import traffic_rows
from planner.models import TrafficSet
from planner.traffic import Traffic, TrafficError
from planner.traffic.cost import shaping_s, values_stated
from planner.traffic.errors import TrafficFileError
from planner.traffic.shaping import Operation, merged_ids, operation_dict, parse_operations, shape


def add_problems(form: forms.Form, problems: Iterable[TrafficFileError]) -> None:
    """Each problem under its path ("operations.0.share"), which need not be a field of the form."""
    for problem in problems:
        errors = form.errors.setdefault(problem.field, form.error_class(error_class="errorlist"))
        errors.append(forms.ValidationError(problem.message, code="invalid"))


class ShapeForm(forms.Form):
    """``operations``: a list of objects, or its JSON. Errors stand under "operations.INDEX.FIELD".

    With ``defer`` what is foreseen to take longer than IMMEDIATE_TRAFFIC_S is not made: `deferred` says so, and a
    worker makes it (traffic_work.py), which tells `on_step` how far it is.
    """

    name = LineField(
        max_length=120, required=False, label="Name", help_text="Default: after the traffic it is made of."
    )
    seed = seed_field()
    operations = JsonTextField(required=False)

    def __init__(
        self,
        *args: Any,
        traffic: TrafficSet,
        user: Any,
        defer: bool = False,
        on_step: Callable[[int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.row, self.user = traffic, user
        self.defer, self.on_step = defer, on_step
        self.deferred = False
        self.done: tuple[Operation, ...] = ()

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        try:
            self.done = parse_operations(data.get("operations"))
            others = self._others(merged_ids(self.done))
            self.deferred = self.defer and self._takes_s(others) > settings.IMMEDIATE_TRAFFIC_S
            if not self.deferred:
                data["traffic"] = shape(
                    traffic_rows.parent_of(self.row), self.done, seed=data.get("seed") or 0,
                    others=[traffic_rows.parent_of(other) for other in others], on_step=self.on_step,
                )  # fmt: skip
        except TrafficError as error:
            add_problems(self, error.errors)
        data["default_named"] = not data.get("name")
        data["name"] = data.get("name") or f"{self.row.name}, shaped"[:120]
        return data

    def _others(self, ids: list[str]) -> list[TrafficSet]:
        """What is merged: of the same project, so that nobody learns of another's traffic through a recipe."""
        return list(mergeable(self.row, self.user).filter(pk__in=[one for one in ids if is_uuid(one)]))

    def _takes_s(self, others: list[TrafficSet]) -> float:
        statistics = self.row.statistics
        merged = {str(other.pk): values_stated(other.statistics) for other in others}
        return shaping_s(values_stated(statistics), statistics["requests"], self.done, merged)

    def options(self) -> dict[str, Any]:
        """What another form of the same kind makes the same of: JSON."""
        return {
            "name": self.cleaned_data["name"], "seed": self.cleaned_data.get("seed") or 0,
            "operations": [operation_dict(one) for one in self.done],
        }  # fmt: skip

    def traffic(self) -> Traffic:
        traffic: Traffic = self.cleaned_data["traffic"]
        return traffic


def mergeable(row: TrafficSet, user: Any) -> Any:
    """The traffics that may be merged with this one: its project's, itself included."""
    return TrafficSet.objects.visible_to(user).filter(project_id=row.project_id)


def is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
