"""What several forms share: an architecture chosen, pasted or uploaded; a file; a seed."""

from __future__ import annotations

import json
from typing import IO, Any, cast

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile

from calibration.architecture import PRESETS, Architecture, UnsupportedArchitecture, parse_config_text

CUSTOM = "config"
MODELS = [*((key, key) for key in PRESETS), (CUSTOM, "a config.json of your own")]


class ArchitectureMixin(forms.Form):
    """A preset, or a config.json pasted or uploaded."""

    model = forms.ChoiceField(
        choices=MODELS,
        initial="demo", help_text="Public dimensions; the weights are random, because timing needs none.",
    )  # fmt: skip
    config_text = forms.CharField(
        required=False, strip=False, max_length=1_000_000, label="config.json, pasted",
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
    )  # fmt: skip
    config_file = forms.FileField(required=False, label="config.json, as a file")

    def clean_architecture(self, data: dict[str, Any]) -> Architecture | None:
        """Reads the architecture from the cleaned fields; puts an error beside the field it came from."""
        if data.get("model") != CUSTOM:
            return PRESETS.get(data.get("model", ""))
        upload: UploadedFile[Any] | None = data.get("config_file")
        field = "config_file" if upload else "config_text"
        try:
            content = upload.read(1_000_001) if upload else data.get("config_text") or ""
            if not content:
                self.add_error("config_text", "Paste a config.json or choose a file.")
                return None
            return parse_config_text(content, data.get("name") or "")
        except UnsupportedArchitecture as error:
            self.add_error(field, f"{error.field}: {error.message}")
        return None


class ImportedArchitectureMixin(ArchitectureMixin):
    """The same of step times measured elsewhere: which model they are of is for whoever brings them to say."""

    model = forms.ChoiceField(
        choices=[("", "choose the model"), *MODELS],
        help_text="The model that these are step times of: its layers, parameters and KV bytes are counted from it.",
    )


class LineField(forms.CharField):
    """One line of text that a page, a file and a terminal show as it was written: no control characters, nothing
    that turns the text around it. Blanks of any kind, line ends too, become single spaces."""

    def to_python(self, value: Any) -> str:
        return " ".join((super().to_python(value) or "").split())

    def validate(self, value: Any) -> None:
        super().validate(value)
        if not str(value).isprintable():
            raise forms.ValidationError("Only printable characters are allowed.")


class JsonTextField(forms.JSONField):
    """JSON as text, or what was decoded already. Refused, not raised: what is nested too deep, NaN and Infinity."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(decoder=_StrictDecoder, **kwargs)

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except RecursionError:
            raise forms.ValidationError("The JSON is nested too deep.") from None


class _StrictDecoder(json.JSONDecoder):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "parse_constant": _no_constant})


def _no_constant(text: str) -> Any:
    # Django's field takes this kind of error only, and says that the JSON is not valid.
    raise json.JSONDecodeError(f"{text} is no JSON number", text, 0)


def stream(upload: UploadedFile[Any]) -> IO[bytes]:
    """The upload's open binary file (in memory or on disk)."""
    return cast("IO[bytes]", upload.file)


def seed_field() -> forms.IntegerField:
    return forms.IntegerField(min_value=0, max_value=2**31 - 1, initial=0, required=False)


def refused_file(message: str, too_large: bool) -> forms.ValidationError:
    """What is wrong with a file; the code decides between 413 and 422."""
    return forms.ValidationError(message, code="too_large" if too_large else "invalid")


class UploadMixin(forms.Form):
    def clean_size(self, upload: UploadedFile[Any]) -> None:
        if upload.size and upload.size > settings.MAX_UPLOAD_BYTES:
            limit_mb = settings.MAX_UPLOAD_BYTES // 1024**2
            raise forms.ValidationError(
                f"The file is larger than the limit of {limit_mb} MiB.", code="too_large"
            )
