"""Fields of a plan's form: objectives and lists of numbers as texts, calibrations and traffics by what they are."""

from __future__ import annotations

from typing import Any

from django import forms

from calibration.calibration_field import DatedCalibrationField
from calibration.models import Calibration, CalibrationQuerySet
from planner.search import Objective, ObjectiveError, parse_objective


class ObjectivesField(forms.Field):
    """Several objectives: repeated values or lines of ``metric:percentile:seconds``."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> tuple[Objective, ...]:
        lines = value if isinstance(value, list) else str(value or "").replace(",", "\n").splitlines()
        try:
            return tuple(parse_objective(str(line)) for line in lines if str(line).strip())
        except ObjectiveError as error:
            raise forms.ValidationError(str(error)) from error


class IntegersField(forms.CharField):
    """A list of whole numbers, separated by commas or spaces."""

    def to_python(self, value: Any) -> tuple[int, ...]:  # type: ignore[override]
        text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")
        try:
            return tuple(int(word) for word in text.replace(",", " ").split())
        except ValueError as error:
            raise forms.ValidationError("Write whole numbers, separated by commas.") from error

    def validate(self, value: Any) -> None:
        pass

    def run_validators(self, value: Any) -> None:
        pass


class WordsField(forms.CharField):
    """A list of names, separated by commas; a name may have blanks in it."""

    def to_python(self, value: Any) -> tuple[str, ...]:  # type: ignore[override]
        text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")
        return tuple(" ".join(word.split()) for word in text.split(",") if word.strip())

    def validate(self, value: Any) -> None:
        pass

    def run_validators(self, value: Any) -> None:
        pass


class CalibrationField(DatedCalibrationField):
    """Published calibrations. Of `visible` ones that are not, an error says why a plan cannot rest on them."""

    visible: CalibrationQuerySet = Calibration.objects.none()
    default_error_messages = {
        "invalid_choice": "There is no such calibration among yours.",
        "unpublished": "The calibration %(name)s is not published, so no plan can rest on it: %(why)s",
    }

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except forms.ValidationError:
            try:
                row = self.visible.filter(pk=value).first()
            except (ValueError, TypeError, forms.ValidationError):  # no id at all
                row = None
            if row is None:
                raise
            why = row.reason or row.error or f"it is {row.status}."
        raise forms.ValidationError(
            self.error_messages["unpublished"], code="unpublished", params={"name": row.name, "why": why}
        )


class TrafficField(forms.ModelChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, obj: Any) -> str:
        rate = obj.statistics.get("rate_per_s")
        return f"{obj.name} ({obj.statistics['requests']:,} requests{f', {rate:.3g}/s' if rate else ''})"


def number(
    label: str, low: float, high: float, help_text: str = "", initial: float | None = None
) -> forms.FloatField:
    return forms.FloatField(
        required=False, min_value=low, max_value=high, label=label, help_text=help_text, initial=initial
    )
