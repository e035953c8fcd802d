"""The form of published curves: one or two files of a publication become a calibration."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from calibration import services
from calibration.capacity import MAX_POOL_TOKENS
from calibration.engines import parse_engine
from calibration.facts import Facts
from calibration.form_parts import ImportedArchitectureMixin, LineField, UploadMixin, stream
from calibration.forms import too_small_pool
from calibration.sources.curves import Curves, NeedsWord, read_curves
from calibration.sources.published import MAX_TOKENS, CurveError

PUBLISHED = "published curve"


class ImportCurvesForm(ImportedArchitectureMixin, UploadMixin):
    """Curves that others published: told by what is in the files."""

    name = LineField(max_length=120, required=False)
    file = forms.FileField(
        label="Curve (npz, or CSV, also .gz)",
        help_text="Of Dynamo's profiler (npz), Sarathi's figure 2 or Splitwise's table (CSV).",
    )
    second_file = forms.FileField(
        required=False, label="Its second half",
        help_text="Where prefill and decode were published as two files. Read with the first as one.",
    )  # fmt: skip
    device = LineField(max_length=120, initial="", help_text="What it was measured on, e.g. H200.")
    hardware = LineField(
        max_length=120, required=False, label="Rows of",
        help_text="Splitwise's table: which hardware, where it has several (e.g. a100-80gb).",
    )  # fmt: skip
    context_tokens = forms.IntegerField(
        min_value=1, max_value=MAX_TOKENS, required=False, label="Context of the decodes [tokens]",
        help_text="Sarathi's figure 2 does not say it.",
    )  # fmt: skip
    kv_tokens = forms.IntegerField(
        min_value=16, max_value=MAX_POOL_TOKENS, required=False, label="KV cache [tokens]",
        help_text="Default: what Dynamo's decode profile says; the others do not.",
    )  # fmt: skip
    engine = LineField(
        max_length=120, required=False, label="Engine and version",
        help_text="Whose step times these are, e.g. vllm. Left empty, plans allow for another engine's.",
    )  # fmt: skip
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, initial=0, required=False)

    field_order = ["name", "file", "second_file", "model", "config_text", "config_file", "device", "hardware",
                   "context_tokens", "kv_tokens", "engine", "seed"]  # fmt: skip

    def clean_file(self) -> UploadedFile[Any]:
        upload: UploadedFile[Any] = self.cleaned_data["file"]
        self.clean_size(upload)
        return upload

    def clean_second_file(self) -> UploadedFile[Any] | None:
        upload: UploadedFile[Any] | None = self.cleaned_data["second_file"]
        if upload is not None:
            self.clean_size(upload)
        return upload

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        architecture = self.clean_architecture(data)
        if architecture is None or self.errors:
            return data
        uploads = [upload for upload in (data["file"], data.get("second_file")) if upload]
        curves = self._curves(uploads, data)
        kv_tokens = data.get("kv_tokens") or (curves.kv_tokens if curves else None)
        if curves is None:
            return data
        if kv_tokens is None:
            self.add_error("kv_tokens", "The file does not say how many tokens the KV cache holds: enter it.")
            return data
        if problem := too_small_pool(curves.samples, kv_tokens):
            self.add_error("kv_tokens", problem)
            return data
        data["request"] = services.ImportRequest(
            name=data.get("name") or f"{architecture.name} on {data['device']} (from a publication)",
            architecture=architecture, device=data["device"], kv_tokens=kv_tokens, seed=data.get("seed") or 0,
            samples=curves.samples, facts=Facts(parse_engine(data.get("engine") or "", PUBLISHED)),
            provenance=self._provenance(uploads, curves), tensor_parallel=curves.tensor_parallel,
            default_named=not data.get("name"),
        )  # fmt: skip
        return data

    def _curves(self, uploads: list[UploadedFile[Any]], data: dict[str, Any]) -> Curves | None:
        try:
            return read_curves(
                [stream(upload) for upload in uploads], context_tokens=data.get("context_tokens"),
                hardware=data.get("hardware") or "",
            )  # fmt: skip
        except NeedsWord as error:
            self.add_error(error.field, error.message)
        except CurveError as error:
            second = error.place.startswith("file 2")
            self.add_error("second_file" if second else "file", str(error))
        return None

    @staticmethod
    def _provenance(uploads: list[UploadedFile[Any]], curves: Curves) -> dict[str, Any]:
        first, *others = [
            services.file_provenance(upload.name or "curves", stream(upload), len(curves.samples))
            for upload in uploads
        ]
        told: dict[str, Any] = {"form": curves.form, "taken_for_granted": "; ".join(curves.granted)}
        if curves.hardware:
            told["hardware"] = curves.hardware
        return first | {"published": told} | ({"second_file": others[0]} if others else {})

    def request(self) -> services.ImportRequest:
        request: services.ImportRequest = self.cleaned_data["request"]
        return request
