"""Forms of bringing a file: what may be said about it. Upload page, mapping page, API and command share them."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from calibration.form_parts import LineField, UploadMixin, seed_field, stream
from planner import import_work
from planner.traffic import BenchmarkResult, TooLarge, Traffic, TrafficError, preview, read_traffic
from planner.traffic.layout import ROLES, UNIT_NAMES
from planner.traffic.options import (
    DELIMITERS,
    ENCODINGS,
    LENGTH_UNITS,
    THOUSANDS,
    TURN_FIRST_TOKEN_S,
    TURN_TOKEN_S,
    ImportOptions,
)

FOUND = ("", "found in the file")
ROLE_LABELS = {
    "time": "Arrival time",
    "prompt": "Prompt length",
    "output": "Output length",
    "max_tokens": "Cap on the output (max_tokens)",
    "priority": "Priority",
    "class": "Class, model or tenant",
    "status": "Success or failure",
}
NO_COLUMN = "(none)"


def add_traffic_errors(form: forms.Form, error: TrafficError) -> None:
    """Each problem beside its field, and how many more there are."""
    code = "too_large" if isinstance(error, TooLarge) else "invalid"
    for problem in error.errors:
        field = "mapping" if problem.field == "columns" else problem.field
        if field not in form.fields:
            field = "file" if "file" in form.fields else None  # type: ignore[assignment]
        form.add_error(field, forms.ValidationError(str(problem), code=code))
    more = error.total - len(error.errors)
    if more > 0:
        at_least = "at least " if error.total_is_at_least else ""
        form.add_error("file" if "file" in form.fields else None, f"… and {at_least}{more} more.")


def _choices(names: dict[str, str]) -> list[tuple[str, str]]:
    return [FOUND, *names.items()]


class ImportOptionsForm(forms.Form):
    """Everything that can be said about a file (planner/traffic/options.py explains it)."""

    name = LineField(max_length=120, required=False, help_text="Default: the file's name.")
    mapping = forms.CharField(
        required=False, max_length=10_000, label="Mapping",
        help_text="Which column is what, as JSON or role=column,…: time, prompt, output, max_tokens, priority, class, "
        "status; and any of the options below.",
    )  # fmt: skip
    delimiter = forms.ChoiceField(required=False, choices=_choices(DELIMITERS), label="Delimiter")
    header = forms.ChoiceField(
        required=False,
        label="First line",
        choices=[FOUND, ("yes", "names the columns"), ("no", "is a row already")],
    )
    encoding = forms.ChoiceField(required=False, choices=_choices(ENCODINGS), label="Encoding")
    decimal = forms.ChoiceField(
        required=False, label="Decimal mark", choices=[FOUND, (".", "point"), (",", "comma")]
    )
    thousands = forms.ChoiceField(
        required=False, label="Thousands separator in lengths", choices=[("", "none"), *THOUSANDS.items()],
    )  # fmt: skip
    time_unit = forms.ChoiceField(required=False, label="Unit of times", choices=_choices(UNIT_NAMES))
    utc_offset = forms.CharField(
        required=False, max_length=6, label="Zone of times without one",
        help_text="Like +02:00, beside others with one.",
    )  # fmt: skip
    time_origin = forms.ChoiceField(
        required=False, label="Origin of times", help_text="Where times start again in the middle of the file.",
        choices=[("one", "one clock for the whole file"), ("each_run", "each run follows the one before")],
    )  # fmt: skip
    length_unit = forms.ChoiceField(required=False, label="Lengths are", choices=_choices(LENGTH_UNITS))
    tokens_per_unit = forms.FloatField(
        required=False, min_value=1e-3, max_value=1_000, label="Tokens for each word or character",
        help_text="English: about 1.3 a word, 0.25 a character.",
    )  # fmt: skip
    rate_per_s = forms.FloatField(
        required=False, min_value=1e-6, max_value=1e6, label="Rate [requests/s]",
        help_text="Only for files without arrival times.",
    )  # fmt: skip
    interarrival_cv = forms.FloatField(
        required=False, min_value=0, max_value=100, label="Burstiness (CV of the gaps)",
        help_text="Only for files without arrival times. 1: Poisson, the default.",
    )  # fmt: skip
    requests = forms.IntegerField(
        required=False, min_value=1, max_value=5_000_000, label="Requests to draw",
        help_text="Only for distributions. Default: as many as it counts, or 10,000.",
    )  # fmt: skip
    seed = seed_field()
    max_model_len = forms.IntegerField(
        required=False, min_value=2, max_value=100_000_000, label="Longest request [tokens]",
        help_text="Longer ones are listed and left out, never cut.",
    )  # fmt: skip
    attempted_requests = forms.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, label="Requests attempted",
        help_text="Where the file holds only those that ended well.",
    )  # fmt: skip
    zero_outputs = forms.ChoiceField(
        required=False, label="Requests without output", help_text="They failed where the trace was taken.",
        choices=[("exclude", "leave out, and list"), ("keep_arrival", "keep, with one output token")],
    )  # fmt: skip
    turn_first_token_s = forms.FloatField(
        required=False, min_value=0, max_value=86_400, label="An earlier turn's first token [s]",
        help_text=f"Only where turns wait for others. Default: {TURN_FIRST_TOKEN_S:g}.",
    )  # fmt: skip
    turn_token_s = forms.FloatField(
        required=False, min_value=0, max_value=86_400, label="Each of its output tokens [s]",
        help_text=f"Only where turns wait for others. Default: {TURN_TOKEN_S:g}.",
    )  # fmt: skip
    session_prompts = forms.ChoiceField(
        required=False, label="A later turn's length is",
        choices=[FOUND, ("whole", "its whole prompt"), ("added", "what it adds to the conversation")],
    )  # fmt: skip
    spread_grid = forms.BooleanField(
        required=False, label="Spread requests that share a stamp over the tick of a coarse clock"
    )
    keep_file = forms.BooleanField(
        required=False, label="Keep the original file",
        help_text="For you alone, until you delete it. Otherwise it is deleted after the import.",
    )  # fmt: skip

    #: Asked only when the file's own answer will not do.
    RARELY = ("mapping", "delimiter", "header", "encoding", "decimal", "thousands", "time_unit", "utc_offset",
              "time_origin", "length_unit", "tokens_per_unit", "interarrival_cv", "requests", "seed", "zero_outputs",
              "attempted_requests", "turn_first_token_s", "turn_token_s", "session_prompts", "spread_grid",
              "keep_file")  # fmt: skip

    def __init__(self, data: Any = None, *args: Any, **kwargs: Any) -> None:
        self.columns: dict[str, str] = {}
        self._mapping_problem = ""
        if data is not None and data.get("mapping"):
            data = self._with_mapping(data)
        super().__init__(data, *args, **kwargs)

    def _with_mapping(self, data: Any) -> dict[str, Any]:
        """The data with what the mapping says of options in their fields, and columns apart."""
        values: dict[str, Any] = data.dict() if hasattr(data, "dict") else dict(data)
        try:
            for key, value in parsed_mapping(str(values["mapping"])).items():
                if key in ROLES:
                    self.columns[key] = "" if value is None else str(value)
                elif key == "header" and isinstance(value, bool):
                    values[key] = "yes" if value else "no"
                elif key in self.base_fields and key not in ("mapping", "file", "name"):
                    values[key] = value
                else:
                    known = ", ".join((*ROLES, *sorted(set(self.base_fields) - {"mapping", "file", "name"})))
                    raise ValueError(f"There is nothing called {key[:40]!r} to map; there are {known}.")
        except ValueError as error:
            self._mapping_problem = str(error)
        return values

    def rare_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.RARELY]

    def rare_have_errors(self) -> bool:
        return any(name in self.errors for name in self.RARELY)

    def clean_mapping(self) -> str:
        if self._mapping_problem:
            raise forms.ValidationError(self._mapping_problem)
        return str(self.cleaned_data["mapping"])

    def clean_header(self) -> bool | None:
        return {"yes": True, "no": False}.get(self.cleaned_data["header"])

    def chosen(self) -> dict[str, Any]:
        """The options that were given, by the names of `ImportOptions`: JSON-safe."""
        data = self.cleaned_data
        values = {
            name: data.get(name) for name in self.base_fields if name not in ("name", "mapping", "file")
        }
        # Zeros are answers; an unticked box is not, except for the header.
        given = {
            key: value
            for key, value in values.items()
            if value is not None and value != "" and (value is not False or key == "header")
        }
        given.pop("keep_file", None)
        return {**given, **({"columns": self.columns} if self.columns else {})}

    def options(self) -> ImportOptions:
        return import_work.options_of(self.chosen())


class _Twice(ValueError):
    """Of two answers to one question neither is taken."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise _Twice(f"{double[:40]} is given twice: say once which it is.")
    return found


def parsed_mapping(text: str) -> dict[str, Any]:
    """{"prompt": "in", ...} or prompt=in,output=out. ValueError in words."""
    if not text.lstrip().startswith("{"):
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise ValueError("Write role=column,role=column, or a JSON object.")
        return _once([(key.strip(), value.strip()) for key, _, value in pairs])
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except _Twice:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The mapping is not valid JSON ({error}).") from error
    columns = found.pop("columns", {}) if isinstance(found, dict) else {}
    if not isinstance(found, dict) or not isinstance(columns, dict):
        raise ValueError("The mapping must be a JSON object.")
    flat = _once([*found.items(), *columns.items()])
    for key, value in flat.items():
        if isinstance(value, list | dict):
            raise ValueError(f"{key[:40]}: neither text nor a number.")
        if isinstance(value, str) and not value.isprintable() and value != "\t":
            raise ValueError(f"{key[:40]}: only printable characters are allowed.")
    return {key: value for key, value in flat.items() if value is not None or key in ROLES}


class LookForm(UploadMixin, ImportOptionsForm):
    """A file to look at; whether it can be read so is for the look to say."""

    file = forms.FileField()

    def clean_file(self) -> UploadedFile[Any]:
        upload: UploadedFile[Any] = self.cleaned_data["file"]
        self.clean_size(upload)
        return upload


class UploadTrafficForm(LookForm):
    """A trace, a list of lengths or a distribution, recognised by its content.

    With ``defer`` only the first part of a file above IMMEDIATE_IMPORT_BYTES is read: `deferred` says so, and a
    worker reads it whole.
    """

    file = forms.FileField(
        label="Trace",
        help_text="CSV or JSON lines of any known tool, or any table with lengths; plain, .gz, .zst, or Parquet.",
    )  # fmt: skip
    field_order = ("file", "name", "rate_per_s", "max_model_len")

    def __init__(self, *args: Any, defer: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.defer = defer
        self.deferred = False
        self.refusal: TrafficError | None = None

    @property
    def evidence(self) -> dict[str, Any] | None:
        """What a benchmark's result shows, where the file is one."""
        return self.refusal.evidence() if isinstance(self.refusal, BenchmarkResult) else None

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        upload: UploadedFile[Any] | None = data.get("file")
        if upload is None or self.errors:
            return data
        data["default_named"] = not data.get("name")
        data["name"] = data.get("name") or (upload.name or "upload")[:120]
        try:
            options = self.options()
            options.check()
            self.deferred = self.defer and import_work.is_large(stream(upload), upload.size or 0)
            if self.deferred:  # what its first part shows to be wrong needs no worker
                problem = preview(stream(upload), options, import_work.limits()).problem
                if problem is not None:
                    raise problem
            else:
                data["traffic"] = read_traffic(
                    stream(upload), options, name=upload.name or "upload", limits=import_work.limits()
                )
        except TrafficError as error:
            self.refusal = error
            add_traffic_errors(self, error)
        return data

    def traffic(self) -> Traffic:
        traffic: Traffic = self.cleaned_data["traffic"]
        return traffic


class MappingForm(ImportOptionsForm):
    """The mapping page: the same options, with the file's own columns to choose from."""

    def __init__(self, data: Any = None, *, file_columns: list[str], **kwargs: Any) -> None:
        super().__init__(data, **kwargs)
        del self.fields["mapping"]
        self.column_names = names = [(name, name) for name in file_columns]
        for role in ROLES:
            needed = role in ("prompt", "output")
            none = [] if needed else [(NO_COLUMN, "there is none")]
            self.fields[f"column_{role}"] = forms.ChoiceField(
                required=False, label=ROLE_LABELS[role], choices=[FOUND, *none, *names]
            )

    def ask_for_lengths(self) -> None:
        """Where the file's names do not say which columns they are."""
        for role in ("prompt", "output"):
            self.fields[f"column_{role}"] = forms.ChoiceField(
                required=False, label=ROLE_LABELS[role], choices=[("", "choose a column"), *self.column_names]
            )

    def role_fields(self) -> list[forms.BoundField]:
        return [self[f"column_{role}"] for role in ROLES]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for role in ROLES:
            if chosen := data.get(f"column_{role}"):
                self.columns[role] = "" if chosen == NO_COLUMN else chosen
                taken = [other for other in self.columns if self.columns[other] == chosen and other != role]
                if chosen != NO_COLUMN and taken:
                    message = f"{chosen} is mapped twice: it is the {ROLE_LABELS[taken[0]].lower()} already."
                    self.add_error(f"column_{role}", message)
        if self.errors:
            return data
        try:
            self.options().check()
        except TrafficError as error:
            add_traffic_errors(self, error)
        return data
