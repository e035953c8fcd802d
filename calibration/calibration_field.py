"""A calibration to choose: by name, device, when it was measured and whether it may still be believed. One that was
measured anew has the same name."""

from __future__ import annotations

from typing import Any

from django import forms

from calibration.freshness import Freshness, freshness_by_id


class DatedCalibrationField(forms.ModelChoiceField):  # type: ignore[type-arg]  # no [] at run time
    """As ModelChoiceField; the freshness of all that can be chosen is looked up once a form."""

    _fresh: dict[Any, Freshness] | None = None

    def label_from_instance(self, obj: Any) -> str:
        if self._fresh is None:
            self._fresh = freshness_by_id(list(self.queryset or ()))
        fresh = self._fresh.get(obj.pk)
        judged = f", {fresh.label}" if fresh else ""
        return f"{obj.name} ({obj.device_label}, {obj.created_at:%Y-%m-%d %H:%M}{judged})"
