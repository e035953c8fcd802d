"""Forms: the one place where what people send is validated; pages and API share them (calibration/forms.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict

from calibration.form_parts import LineField, UploadMixin, seed_field, stream
from calibration.models import Calibration
from planner.models import TrafficSet
from planner.search import (
    DEFAULT_MAX_REPLICAS,
    METRICS,
    Objective,
    ObjectiveError,
    SearchSpace,
    SpaceError,
    check_objectives,
    default_space_of,
    parse_objective,
)
from planner.services import PlanRequest
from planner.traffic import LIMITS, PRESETS, TooLarge, Traffic, TrafficError, read_traffic, synthesise
from planner.traffic.layout import UNIT_NAMES


def add_traffic_errors(form: forms.Form, error: TrafficError) -> None:
    """Each problem beside its field, and how many more there are."""
    code = "too_large" if isinstance(error, TooLarge) else "invalid"
    for problem in error.errors:
        field = problem.field if problem.field in form.fields else None
        form.add_error(field, forms.ValidationError(str(problem), code=code))
    more = error.total - len(error.errors)
    if more > 0:
        at_least = "at least " if error.total_is_at_least else ""
        form.add_error("file", f"… and {at_least}{more} more.")


class UploadTrafficForm(UploadMixin):
    """A trace or a list of lengths, recognised by its content."""

    name = LineField(max_length=120, required=False, help_text="Default: the file's name.")
    file = forms.FileField(
        label="Trace", help_text="Azure CSV, Mooncake JSONL, or a CSV of lengths; also .gz.",
    )  # fmt: skip
    rate_per_s = forms.FloatField(
        required=False, min_value=1e-6, max_value=1e6, label="Rate [requests/s]",
        help_text="Only for files without arrival times.",
    )  # fmt: skip
    interarrival_cv = forms.FloatField(
        required=False, min_value=0, max_value=100, label="Burstiness (CV of the gaps)",
        help_text="Only for files without arrival times. 1: Poisson, the default.",
    )  # fmt: skip
    max_model_len = forms.IntegerField(
        required=False, min_value=2, max_value=100_000_000, label="Longest request [tokens]",
        help_text="Longer ones are listed and left out, never cut.",
    )  # fmt: skip
    time_unit = forms.ChoiceField(
        required=False, label="Unit of times", choices=[("", "found in the file"), *UNIT_NAMES.items()]
    )
    decimal = forms.ChoiceField(
        required=False,
        label="Decimal mark",
        choices=[("", "found in the file"), (".", "point"), (",", "comma")],
    )
    zero_outputs = forms.ChoiceField(
        required=False, label="Requests without output", help_text="They failed where the trace was taken.",
        choices=[("exclude", "leave out, and list"), ("keep_arrival", "keep, with one output token")],
    )  # fmt: skip
    spread_grid = forms.BooleanField(
        required=False, label="Spread requests that share a stamp over the tick of a coarse clock"
    )
    seed = seed_field()

    #: Asked only when the file's own answer will not do.
    RARELY = ("interarrival_cv", "time_unit", "decimal", "zero_outputs", "spread_grid", "seed")

    def rare_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.RARELY]

    def rare_have_errors(self) -> bool:
        return any(name in self.errors for name in self.RARELY)

    def clean_file(self) -> UploadedFile[Any]:
        upload: UploadedFile[Any] = self.cleaned_data["file"]
        self.clean_size(upload)
        return upload

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        upload: UploadedFile[Any] | None = data.get("file")
        if upload is None or self.errors:
            return data
        try:
            data["traffic"] = read_traffic(
                stream(upload), name=upload.name or "upload", rate_per_s=data.get("rate_per_s"),
                interarrival_cv=1.0 if data.get("interarrival_cv") is None else data["interarrival_cv"],
                max_model_len=data.get("max_model_len"), seed=data.get("seed") or 0,
                time_unit=data.get("time_unit") or None, decimal=data.get("decimal") or None,
                zero_outputs=data.get("zero_outputs") or "exclude", spread_grid=bool(data.get("spread_grid")),
                limits=replace(LIMITS, unpacked_bytes=settings.MAX_UNPACKED_BYTES),
            )  # fmt: skip
        except TrafficError as error:
            add_traffic_errors(self, error)
        data["name"] = data.get("name") or (upload.name or "upload")[:120]
        return data

    def traffic(self) -> Traffic:
        traffic: Traffic = self.cleaned_data["traffic"]
        return traffic


class SynthesiseForm(forms.Form):
    """Traffic made up from a preset."""

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

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        try:
            data["traffic"] = synthesise(
                data["preset"], requests=data.get("requests"), rate_per_s=data.get("rate_per_s"),
                seed=data.get("seed") or 0,
            )  # fmt: skip
        except TrafficError as error:
            add_traffic_errors(self, error)
        data["name"] = data.get("name") or f"{PRESETS[data['preset']].title} (synthetic)"
        return data

    def traffic(self) -> Traffic:
        traffic: Traffic = self.cleaned_data["traffic"]
        return traffic


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


class CalibrationField(forms.ModelChoiceField):  # type: ignore[type-arg]  # no [] at run time
    def label_from_instance(self, obj: Any) -> str:
        return f"{obj.name} ({obj.device}, {obj.created_at:%Y-%m-%d})"


class TrafficField(forms.ModelChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, obj: Any) -> str:
        rate = obj.statistics.get("rate_per_s")
        return f"{obj.name} ({obj.statistics['requests']:,} requests{f', {rate:.3g}/s' if rate else ''})"


MEANINGS = {
    "ttft": "Time to the first token, from arrival.",
    "itl": "Each gap between two tokens.",
    "tpot": "A request's mean gap, without the first token.",
    "e2e": "Arrival to the last token.",
}
NO_LIMIT = "Give a limit for at least one of them."
ADVANCED = ("budgets_tokens", "chunk_caps_tokens", "max_num_seqs", "scheduling", "seed")


class PlanForm(forms.Form):
    """The question: which calibration, which traffic, which objectives, and where to look.

    Objectives come as ``objectives`` (the API's way) or as a percentile and a limit per metric (the page's).
    """

    name = LineField(max_length=120, required=False)
    calibration = CalibrationField(Calibration.objects.none(), empty_label="Choose a calibration")
    traffic = TrafficField(TrafficSet.objects.none(), empty_label="Choose a traffic")
    objectives = ObjectivesField(required=False)
    max_replicas = forms.IntegerField(
        min_value=1, max_value=256, initial=DEFAULT_MAX_REPLICAS, required=False, label="Most replicas",
        help_text="The most you would deploy.",
    )  # fmt: skip
    budgets_tokens = IntegersField(
        required=False,
        label="max_num_batched_tokens",
        help_text="Token budgets per step. Default: from the calibration.",
    )
    chunk_caps_tokens = IntegersField(
        required=False, label="long_prefill_token_threshold", help_text="Chunk caps per request; 0: none."
    )
    max_num_seqs = IntegersField(
        required=False, label="max_num_seqs", help_text="Sequences that run at once."
    )
    scheduling = forms.ChoiceField(
        choices=[("async", "asynchronous (vLLM's default)"), ("sync", "synchronous")], required=False
    )
    seed = seed_field()

    PERCENTILES = [(str(p), f"p{p}") for p in ("50", "90", "95", "99", "99.9")]

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        usable = Calibration.objects.visible_to(user).usable().defer("log", "traceback")
        self.fields["calibration"].queryset = usable  # type: ignore[attr-defined]
        self.fields["traffic"].queryset = TrafficSet.objects.visible_to(user)  # type: ignore[attr-defined]
        for metric in METRICS:
            self.fields[f"{metric}_percentile"] = forms.ChoiceField(
                choices=self.PERCENTILES, required=False, label=f"{metric.upper()} percentile",
                initial="99" if metric == "itl" else "95",
            )  # fmt: skip
            self.fields[f"{metric}_limit_ms"] = forms.FloatField(
                required=False, label=f"{metric.upper()} limit [ms]", min_value=0.001, max_value=86_400_000,
                widget=forms.NumberInput(attrs={"placeholder": "no limit"}),
            )  # fmt: skip
        if isinstance(self.data, QueryDict) and len(self.data.getlist("objectives")) > 1:
            data: dict[str, Any] = self.data.dict()
            data["objectives"] = self.data.getlist("objectives")
            self.data = data

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        objectives = self._objectives(data)
        data["space"] = space = self._space(data)
        if self.errors or space is None:
            return data
        calibration, traffic = data["calibration"], data["traffic"]
        if calibration.project_id != traffic.project_id:
            self.add_error("traffic", "The traffic belongs to another project than the calibration.")
            return data
        data["request"] = PlanRequest(
            name=data.get("name") or f"{traffic.name} on {calibration.name}"[:120],
            calibration=calibration, traffic=traffic, objectives=objectives, space=space,
            max_replicas=space.max_replicas, seed=data.get("seed") or 0,
        )  # fmt: skip
        return data

    def _objectives(self, data: dict[str, Any]) -> tuple[Objective, ...]:
        """Those of the list, then those of the rows; what is wrong stands beside its field."""
        objectives = list(data.get("objectives") or ())
        for metric in METRICS:
            limit_ms = data.get(f"{metric}_limit_ms")
            if limit_ms is not None:
                percentile = float(data.get(f"{metric}_percentile") or 0)
                try:
                    objectives.append(Objective(metric, percentile, limit_ms / 1000))
                except ObjectiveError as error:
                    part = "percentile" if error.field == "percentile" else "limit_ms"
                    self.add_error(f"{metric}_{part}", error.message)
        if self.errors:
            return tuple(objectives)
        try:
            return check_objectives(tuple(objectives))
        except ObjectiveError as error:
            by_rows = any(f"{metric}_limit_ms" in self.data for metric in METRICS)
            self.add_error("objectives", NO_LIMIT if by_rows and not objectives else error.message)
        return ()

    def _space(self, data: dict[str, Any]) -> SearchSpace | None:
        """Where to look: what was asked for, else the calibration's default; None where that cannot be said."""
        if data.get("calibration") is None:
            return None
        default = default_space_of(
            data["calibration"].result["model"], data.get("max_replicas") or DEFAULT_MAX_REPLICAS
        )
        try:
            return SearchSpace(
                budgets_tokens=data.get("budgets_tokens") or default.budgets_tokens,
                chunk_caps_tokens=data.get("chunk_caps_tokens") or default.chunk_caps_tokens,
                max_num_seqs=data.get("max_num_seqs") or default.max_num_seqs,
                max_replicas=default.max_replicas,
                async_scheduling=data.get("scheduling") != "sync",
            )
        except SpaceError as error:
            self.add_error(error.field if error.field in self.fields else None, error.message)
        return None

    def objective_rows(self) -> list[tuple[str, str, forms.BoundField, forms.BoundField]]:
        """What the page shows: per metric its name and meaning, the percentile and the limit."""
        return [(m.upper(), MEANINGS[m], self[f"{m}_percentile"], self[f"{m}_limit_ms"]) for m in METRICS]

    def advanced_has_errors(self) -> bool:
        return bool(set(ADVANCED) & set(self.errors))

    def request(self) -> PlanRequest:
        request: PlanRequest = self.cleaned_data["request"]
        return request
