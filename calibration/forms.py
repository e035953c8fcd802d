"""Forms: the one place where what people send is validated. Pages show the errors beside the fields; the API
feeds its payloads through the same forms. ``request()`` returns the domain object a service takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile

from calibration import services
from calibration.architecture import Architecture
from calibration.bundles import bundled_named
from calibration.capacity import MAX_POOL_TOKENS
from calibration.document import DocumentError, DocumentTooLarge, read_document
from calibration.engine.client import rank_device
from calibration.engine.sharding import CannotShard, check_shards
from calibration.engines import MeasuredEngine, parse_engine
from calibration.experiment import BadEnvelope, DoesNotFit, Envelope
from calibration.facts import Facts
from calibration.form_parts import (
    ArchitectureMixin,
    ImportedArchitectureMixin,
    LineField,
    UploadMixin,
    refused_file,
    seed_field,
    stream,
)
from calibration.models import Device
from calibration.sources.choosing import in_domain, tokens_held
from calibration.sources.step_csv import StepCsvError, read_step_csv
from calibration.sources.vllm_contexts import LogError, samples_of_log
from calibration.sources.vllm_log import read_vllm_log
from calibration.steptime import StepSample
from calibration.steptime.solving import MIN_POINTS
from calibration.transfer import TransferTable

GIB = 1024**3


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


def ranks_refused(architecture: Architecture, device: str, ranks: int) -> str:
    """Why the model cannot be split among `ranks` devices from `device` on; empty when it can."""
    try:
        check_shards(architecture, ranks)
    except CannotShard as error:
        return f"{error}."
    known = [known.name for known in services.known_devices()]
    missing = [name for rank in range(ranks) if (name := rank_device(device, rank)) not in known]
    return f"No device worker has announced {', '.join(missing)}." if missing else ""


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
        min_value=16, max_value=MAX_POOL_TOKENS, required=False, label="KV cache [tokens]",
        help_text="Default: on a CPU 25 % of the free memory.",
    )  # fmt: skip
    tensor_parallel = forms.IntegerField(
        min_value=1, max_value=64, initial=1, required=False, label="Tensor parallel [GPUs]",
        help_text="GPUs of one host that share the model, from the device on. On a CPU: processes, for testing only.",
    )  # fmt: skip
    dtype = forms.ChoiceField(
        choices=[("auto", "as the device does best"), ("bfloat16", "bfloat16"), ("float16", "float16"),
                 ("float32", "float32"), ("float8", "8-bit weights (float8)")],
        initial="auto", required=False, label="Weights",
        help_text="8 bits: projections, with a scale per row; experts, embedding and head stay in bfloat16.",
    )  # fmt: skip
    mixed_mode = forms.ChoiceField(
        choices=[("unified", "one kernel for both"), ("split", "decodes apart from chunks")],
        initial="unified", required=False, label="Decodes beside a chunk",
        help_text="How a GPU's attention runs in a mixed step. vLLM's kernels are unified.",
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
        if data.get("mixed_mode") == "split" and device.name.startswith("cpu"):
            self.add_error("mixed_mode", "On a CPU rows attend one by one: there is no split to make.")
            return data
        ranks, dtype = data.get("tensor_parallel") or 1, data.get("dtype") or "auto"
        problem = ranks_refused(architecture, device.name, ranks)
        if problem:
            self.add_error("tensor_parallel", problem)
            return data
        try:
            envelope = Envelope(data["max_batch"], data["max_context_tokens"], data["max_step_tokens"])
            kv_tokens = services.kv_tokens_for(
                architecture, envelope, device, data.get("kv_tokens"), ranks, dtype
            )
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
            seed=data.get("seed") or 0, tensor_parallel=ranks, dtype=dtype,
            mixed_mode=data.get("mixed_mode") or "unified", default_named=not data.get("name"),
        )  # fmt: skip
        return data

    def request(self) -> services.CalibrationRequest:
        request: services.CalibrationRequest = self.cleaned_data["request"]
        return request

    @staticmethod
    def devices() -> list[Device]:
        return services.known_devices()


class LinkForm(forms.Form):
    """A link between hosts that a person knows, with how sure they are of it."""

    gigabytes_per_s = forms.FloatField(
        min_value=1e-6, max_value=1e6, label="Bandwidth [GB/s]",
        help_text="Decimal, as links are sold: a 400 Gb/s card carries 50 GB/s at most.",
    )  # fmt: skip
    latency_us = forms.FloatField(
        min_value=0.0, max_value=1e9, label="Latency [µs]", help_text="Until the first byte arrives."
    )
    uncertainty_percent = forms.FloatField(
        min_value=0.0,
        max_value=1e4,
        label="± [%]",
        help_text="How much longer or shorter transfers may take.",
    )
    label = LineField(max_length=120, required=False, help_text="Which link, e.g. 8 x RoCE between racks.")

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for name in ("gigabytes_per_s", "latency_us", "uncertainty_percent"):
            if name in data and not math.isfinite(data[name]):
                self.add_error(name, "Enter a finite number.")
        return data

    def table(self) -> TransferTable:
        data = self.cleaned_data
        return TransferTable.link(
            data["gigabytes_per_s"], data["latency_us"] / 1e6, data["uncertainty_percent"] / 100,
            f"entered: {data.get('label') or 'a link between hosts'}",
        )  # fmt: skip


class ImportStepsForm(ImportedArchitectureMixin, UploadMixin):
    """A CSV of step times measured elsewhere becomes a calibration."""

    name = LineField(max_length=120, required=False)
    file = forms.FileField(
        label="Step samples (CSV, also .gz)",
        help_text="Columns: prefill_tokens, prefill_context, decode_seqs, decode_context, step_ms or step_s.",
    )
    device = LineField(max_length=120, initial="", help_text="What it was measured on, e.g. RTX 4090.")
    kv_tokens = forms.IntegerField(
        min_value=16, max_value=MAX_POOL_TOKENS, label="KV cache [tokens]",
        help_text="What the engine reported it had room for.",
    )  # fmt: skip
    engine = LineField(
        max_length=120, required=False, label="Engine and version",
        help_text="Whose step times these are, e.g. vllm 0.19.0. Left empty, plans allow for another engine's.",
    )  # fmt: skip
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, initial=0, required=False)

    field_order = [
        "name",
        "file",
        "model",
        "config_text",
        "config_file",
        "device",
        "kv_tokens",
        "engine",
        "seed",
    ]

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
        if problem := too_small_pool(samples, data["kv_tokens"]):
            self.add_error("kv_tokens", problem)
            return data
        data["request"] = services.ImportRequest(
            name=data.get("name") or f"{architecture.name} on {data['device']} (imported)",
            architecture=architecture, device=data["device"], kv_tokens=data["kv_tokens"],
            seed=data.get("seed") or 0, samples=samples,
            facts=Facts(parse_engine(data.get("engine") or "", "step table")), default_named=not data.get("name"),
            provenance=services.file_provenance(upload.name or "steps.csv", stream(upload), len(samples)),
        )  # fmt: skip
        return data

    def request(self) -> services.ImportRequest:
        request: services.ImportRequest = self.cleaned_data["request"]
        return request


class ImportVllmLogForm(ImportedArchitectureMixin, UploadMixin):
    """A log of vLLM's iterations becomes a calibration."""

    name = LineField(max_length=120, required=False)
    file = forms.FileField(
        label="vLLM's log (text, also .gz)",
        help_text="Of a server started with --enable-logging-iteration-details, from its first line.",
    )
    device = LineField(max_length=120, initial="", help_text="What it ran on, e.g. H200.")
    kv_tokens = forms.IntegerField(
        min_value=16, max_value=MAX_POOL_TOKENS, required=False, label="KV cache [tokens]",
        help_text='Default: what the log says ("GPU KV cache size").',
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
            log = read_vllm_log(stream(upload), max_bytes=settings.MAX_UNPACKED_BYTES)
            found = samples_of_log(log, data.get("kv_tokens"))
        except StepCsvError as error:
            for line in error.lines():
                self.add_error("file", refused_file(line, error.too_large))
            return data
        except LogError as error:
            self.add_error("file", str(error))
            return data
        kv_tokens = data.get("kv_tokens") or log.kv_tokens
        if kv_tokens is None:
            self.add_error(
                "kv_tokens", 'The log has no line "GPU KV cache size": say how many tokens it holds.'
            )
            return data
        if problem := too_small_pool(found.samples, kv_tokens):
            self.add_error("kv_tokens", problem)
            return data
        data["request"] = services.ImportRequest(
            name=data.get("name") or f"{architecture.name} on {data['device']} (vLLM's log)",
            architecture=architecture, device=data["device"], kv_tokens=kv_tokens, seed=data.get("seed") or 0,
            samples=found.samples, facts=Facts(MeasuredEngine("vllm", log.version or "", "iteration log")),
            provenance=services.file_provenance(upload.name or "vllm.log", stream(upload), len(log.steps))
            | {"iterations": services.log_provenance(found)},
            default_named=not data.get("name"),
        )  # fmt: skip
        return data

    def request(self) -> services.ImportRequest:
        request: services.ImportRequest = self.cleaned_data["request"]
        return request


def too_small_pool(samples: Sequence[StepSample], kv_tokens: int) -> str:
    """Why nothing can be fitted with this pool though there are steps enough; empty where it can."""
    possible = {sample.shape for sample in samples if in_domain(sample.shape, kv_tokens)}
    every = {sample.shape for sample in samples}
    if len(possible) >= MIN_POINTS or len(every) < MIN_POINTS:
        return ""
    least = sorted(sum(tokens_held(shape)) for shape in every)[MIN_POINTS - 1]
    return (
        f"Only {len(possible)} of the file's {len(every):,} different steps fit a KV cache of {kv_tokens:,} tokens, "
        f"and a fit needs {MIN_POINTS}: those begin at {least:,} tokens. Is this what the engine reported?"
    )


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
        provenance = services.file_provenance(
            upload.name or "calibration.json", stream(upload), len(document.samples)
        )
        data["request"] = services.document_request(document, data.get("name") or "", provenance)
        return data

    def request(self) -> services.ImportRequest:
        request: services.ImportRequest = self.cleaned_data["request"]
        return request


class ImportBundledForm(forms.Form):
    """A calibration that comes with Ridgeline becomes one of the project's."""

    name = LineField(max_length=200, help_text='As listed, e.g. "h200/llama-8b".')

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        entry = bundled_named(data["name"])
        if entry is None:
            self.add_error("name", "There is no bundled calibration of this name.")
            return data
        try:
            data["request"] = services.bundled_request(entry)
        except DocumentError as error:
            self.add_error("name", str(error))
        return data

    def request(self) -> services.ImportRequest:
        request: services.ImportRequest = self.cleaned_data["request"]
        return request
