"""Forms: the one place where what people send is validated. Pages show the errors beside the fields; the API
feeds its payloads through the same forms. ``request()`` returns the domain object a service takes."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile

from calibration import services
from calibration.architecture import Architecture
from calibration.document import DocumentError, DocumentTooLarge, read_document
from calibration.experiment import BadEnvelope, DoesNotFit, Envelope
from calibration.form_parts import ArchitectureMixin, LineField, UploadMixin, refused_file, seed_field, stream
from calibration.models import Device
from calibration.sources.step_csv import StepCsvError, read_step_csv

GIB = 1024**3
MAX_KV_TOKENS = 100_000_000


class DescribeForm(ArchitectureMixin):
    """What is this model made of?"""

    name = LineField(max_length=120, required=False)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        data["architecture"] = self.clean_architecture(data)
        return data

    def architecture(self) -> Architecture:
        architecture: Architecture = self.cleaned_data["architecture"]
        return architecture


class CalibrateForm(ArchitectureMixin):
    """Measure a model on a device of ours."""

    name = LineField(max_length=120, required=False, help_text="Default: model and device.")
    device = LineField(max_length=40, initial="cpu")
    max_batch = forms.IntegerField(
        min_value=1, max_value=4096, initial=16, label="Largest batch [sequences]",
        help_text="The most sequences that decode together in the region you want to plan in.",
    )  # fmt: skip
    max_context_tokens = forms.IntegerField(
        min_value=16, max_value=1_000_000, initial=1024, label="Longest context [tokens]",
        help_text="Prompt and output together.",
    )  # fmt: skip
    max_step_tokens = forms.IntegerField(
        min_value=16, max_value=131_072, initial=512, label="Largest step [tokens]",
        help_text="The largest token budget (max_num_batched_tokens) you want to consider.",
    )  # fmt: skip
    kv_tokens = forms.IntegerField(
        min_value=16, max_value=MAX_KV_TOKENS, required=False, label="KV cache [tokens]",
        help_text="Default: on a CPU 25 % of the free memory.",
    )  # fmt: skip
    seed = seed_field()

    def clean_device(self) -> str:
        name: str = self.cleaned_data["device"]
        known = services.known_devices()
        if name not in [device.name for device in known]:
            shown = ", ".join(device.name for device in known)
            raise forms.ValidationError(f"No device worker has announced {name!r}. Announced: {shown}.")
        return name

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        architecture = self.clean_architecture(data)
        if architecture is not None and not architecture.runnable:
            reason = architecture.not_run_reason
            self.add_error("model", f"{architecture.name} can be described but not run here: {reason}.")
        if architecture is None or self.errors:
            return data
        device = services.device_named(data["device"])
        try:
            envelope = Envelope(data["max_batch"], data["max_context_tokens"], data["max_step_tokens"])
            kv_tokens = services.kv_tokens_for(architecture, envelope, device, data.get("kv_tokens"))
        except BadEnvelope as error:
            self.add_error(error.field if error.field in self.fields else None, error.message)
            return data
        except DoesNotFit as error:
            self.add_error(
                "device",
                f"{architecture.name} does not fit on {device.name}: it needs {error.needed_bytes / GIB:.2f} GiB "
                f"({error.needed_bytes:,} bytes), {error.free_bytes / GIB:.2f} GiB ({error.free_bytes:,} bytes) "
                "are free.",
            )
            return data
        data["request"] = services.CalibrationRequest(
            name=data.get("name") or f"{architecture.name} on {device.label}",
            architecture=architecture, device=device.name, envelope=envelope, kv_tokens=kv_tokens,
            seed=data.get("seed") or 0,
        )  # fmt: skip
        return data

    def request(self) -> services.CalibrationRequest:
        request: services.CalibrationRequest = self.cleaned_data["request"]
        return request

    @staticmethod
    def devices() -> list[Device]:
        return services.known_devices()


class ImportStepsForm(ArchitectureMixin, UploadMixin):
    """A CSV of step times measured elsewhere becomes a calibration."""

    name = LineField(max_length=120, required=False)
    file = forms.FileField(
        label="Step samples (CSV, also .gz)",
        help_text="Columns: prefill_tokens, prefill_context, decode_seqs, decode_context, step_ms or step_s.",
    )
    device = LineField(max_length=120, initial="", help_text="What it was measured on, e.g. RTX 4090.")
    kv_tokens = forms.IntegerField(
        min_value=16, max_value=MAX_KV_TOKENS, label="KV cache [tokens]",
        help_text="What the engine reported it had room for.",
    )  # fmt: skip
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, initial=0, required=False)

    field_order = ["name", "file", "model", "config_text", "config_file", "device", "kv_tokens", "seed"]

    def clean_file(self) -> UploadedFile[Any]:
        upload: UploadedFile[Any] = self.cleaned_data["file"]
        self.clean_size(upload)
        return upload

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        architecture = self.clean_architecture(data)
        if architecture is None or self.errors:
            return data
        upload: UploadedFile[Any] = data["file"]
        try:
            samples = read_step_csv(stream(upload), max_bytes=settings.MAX_UNPACKED_BYTES)
        except StepCsvError as error:
            for line in error.lines():
                self.add_error("file", refused_file(line, error.too_large))
            return data
        data["request"] = services.ImportRequest(
            name=data.get("name") or f"{architecture.name} on {data['device']} (imported)",
            architecture=architecture, device=data["device"], kv_tokens=data["kv_tokens"],
            seed=data.get("seed") or 0, samples=samples,
            provenance=services.file_provenance(upload.name or "steps.csv", stream(upload), len(samples)),
        )  # fmt: skip
        return data

    def request(self) -> services.ImportRequest:
        request: services.ImportRequest = self.cleaned_data["request"]
        return request


class ImportDocumentForm(UploadMixin):
    """A calibration file written by ``manage.py calibrate --out`` or ``python -m calibration.measure``."""

    name = LineField(max_length=120, required=False)
    file = forms.FileField(label="Calibration file (JSON)")

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
            document = read_document(stream(upload))
        except DocumentError as error:
            self.add_error("file", refused_file(str(error), isinstance(error, DocumentTooLarge)))
            return data
        data["request"] = services.ImportRequest(
            name=data.get("name") or f"{document.architecture.name} on {document.device} (imported)",
            architecture=document.architecture, device=document.device, kv_tokens=document.kv_tokens,
            seed=document.seed, samples=document.samples, envelope=document.envelope,
            environment=document.environment,
            provenance=services.file_provenance(
                upload.name or "calibration.json", stream(upload), len(document.samples)
            )
            | {"declared": document.provenance},
        )  # fmt: skip
        return data

    def request(self) -> services.ImportRequest:
        request: services.ImportRequest = self.cleaned_data["request"]
        return request
