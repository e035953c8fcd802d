"""What the API takes and answers about architectures, devices and calibrations."""

from __future__ import annotations

from typing import Any, Literal

from ninja import Field, Schema

from calibration.forms import CalibrateForm, DescribeForm, ImportDocumentForm, ImportStepsForm
from config.schemas import JobFilters, JobOut, Payload, Slug, of


class ArchitectureOut(Schema):
    """Counts and bytes: weights and KV cache in bf16, all layers, one rank, blocks of 16 tokens."""

    name: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_tokens: int
    parameters: int
    parameters_exact: bool = Field(description="False where the file switches on tensors it does not size.")
    active_parameters: int = Field(description="All but the experts that a token is not routed to.")
    flops_per_token: int = Field(description="Of one sampled token, without attention to a context.")
    weight_bytes: int = Field(description="In bf16, whatever the published weights use.")
    quantization: str = Field(description="Of the published weights; empty when they have none.")
    experts: int = Field(description="In a layer that has them; 0 in a dense model.")
    experts_per_token: int
    tensor_parallel: int = Field(description="Ranks that the KV bytes are counted for, together.")
    kv_dtype: str
    kv_block_tokens: int
    kv_layers: int = Field(description="Layers with a KV cache.")
    kv_latent_elements: int = Field(description="Cached per token and layer by latent attention; else 0.")
    kv_bytes_per_token: int
    kv_bytes_per_token_growing: int = Field(description="In layers that keep every token.")
    kv_bytes_per_token_windowed: int = Field(description="In layers that keep window_tokens at most.")
    kv_bytes_full_context: int = Field(description="Of one sequence of max_position_tokens, in whole blocks.")
    window_tokens: int | None
    state_elements_per_sequence: int = Field(
        description="Of recurrent layers: fixed, and not in the KV bytes."
    )
    runnable: bool = Field(description="Whether it can be measured here, or only described.")
    not_runnable_reason: str
    remarks: list[str] = Field(description="What the figures mean and leave out.")


class PresetOut(Schema):
    key: str = Field(description="What `model` means in a payload.")
    architecture: ArchitectureOut


class ArchitectureIn(Payload):
    model: str = of(DescribeForm, "model")
    config: dict[str, Any] | None = Field(None, description="A config.json, instead of a preset.")
    name: str | None = of(DescribeForm, "name")


class DeviceOut(Schema):
    name: str = Field(description="What `device` means in a payload.")
    label: str
    hostname: str
    total_bytes: int
    free_bytes: int = Field(description="When the device was last announced.")


class HeldoutOut(Schema):
    """Relative errors on the points that were not fitted, as shares of 1."""

    median: float | None
    p90: float | None


class HeldoutRowOut(Schema):
    """One step that was not fitted: seconds measured, predicted and the interval; the error is signed."""

    kind: Literal["decode", "prefill", "mixed"]
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    error: float
    covered: bool


class HeldoutReportOut(HeldoutOut):
    decode_bias: float | None = Field(description="Mean signed error of pure decode.")
    inside: float = Field(description="Share of the steps whose measurement lies in its interval.")
    by_kind: dict[str, tuple[int, float, float]] = Field(description="Steps, median error, p90 error.")
    rows: list[HeldoutRowOut]


class GateOut(Schema):
    passed: bool
    reason: str
    first_reason: str | None = Field(description="Of the first attempt, where a second one was needed.")


class ResultOut(Schema):
    gate: GateOut
    points: dict[str, int] = Field(description="Steps by what they were used for.")
    heldout: HeldoutReportOut | None
    model: dict[str, Any] | None = Field(
        description="The fitted step-time model; null when the gate refused."
    )


class CalibrationOut(JobOut):
    source: Literal["measured", "imported"]
    model: str
    device: str
    kv_tokens: int | None = Field(description="KV cache size in tokens.")
    published: bool | None = Field(description="Whether the gate passed it; null until it has spoken.")
    reason: str = Field(description="The gate's words.")
    heldout: HeldoutOut | None


class CalibrationDetail(CalibrationOut):
    architecture: ArchitectureOut
    envelope: dict[str, int] | None = Field(
        description="Largest batch, context and step it was measured for."
    )
    seed: int
    samples: int = Field(description="How many are stored so far.")
    environment: dict[str, Any] | None
    provenance: dict[str, Any]
    result: ResultOut | None
    log: str


class CalibrationPage(Schema):
    items: list[CalibrationOut]
    count: int


class CalibrationFilters(JobFilters):
    source: Literal["measured", "imported"] | None = None
    published: bool | None = None


class CalibrationIn(Payload):
    project: Slug | None = None
    name: str | None = of(CalibrateForm, "name")
    model: str = of(CalibrateForm, "model")
    config: dict[str, Any] | None = Field(None, description="A config.json, instead of a preset.")
    device: str = of(CalibrateForm, "device")
    max_batch: int = of(CalibrateForm, "max_batch")
    max_context_tokens: int = of(CalibrateForm, "max_context_tokens")
    max_step_tokens: int = of(CalibrateForm, "max_step_tokens")
    kv_tokens: int | None = of(CalibrateForm, "kv_tokens")
    seed: int = of(CalibrateForm, "seed")


class ImportStepsIn(Payload):
    # Multipart values are text: the form reads the numbers.
    model_config = {"strict": False}

    project: Slug | None = None
    name: str | None = of(ImportStepsForm, "name")
    model: str = of(ImportStepsForm, "model")
    config_text: str | None = of(ImportStepsForm, "config_text", default=None)
    device: str = of(ImportStepsForm, "device", default=...)
    kv_tokens: int = of(ImportStepsForm, "kv_tokens")
    seed: int = of(ImportStepsForm, "seed")


class ImportDocumentIn(Payload):
    project: Slug | None = None
    name: str | None = of(ImportDocumentForm, "name")


class ChunkOut(Schema):
    query_tokens: int
    cached_tokens: int
    completes_prompt: bool


class SampleOut(Schema):
    ordinal: int
    role: str = Field(description="fit and retry are fitted; heldout and retry_heldout are only scored.")
    kind: Literal["decode", "prefill", "mixed"]
    decode_contexts: list[int] = Field(
        description="Tokens in each decoding sequence's KV cache before the step."
    )
    chunks: list[ChunkOut]
    seconds: list[float] = Field(description="One per repeat.")
    contended_share: float
    host_gap_s: float


class SamplePage(Schema):
    items: list[SampleOut]
    count: int
