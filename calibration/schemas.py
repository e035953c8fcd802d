"""What the API takes and answers about architectures, devices and calibrations."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from calibration.curve_forms import ImportCurvesForm
from calibration.forms import (
    CalibrateForm,
    DescribeForm,
    ImportBundledForm,
    ImportDocumentForm,
    ImportStepsForm,
    ImportVllmLogForm,
    LinkForm,
)
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


class FreshnessOut(Schema):
    """How old a calibration is, and whether it may still be believed."""

    state: Literal["fresh", "ageing", "drifted", "superseded", "unknown"]
    measured_at: datetime | None
    age_s: float | None
    checked_at: datetime | None = Field(description="Of the last drift check that was done.")
    drifted: bool | None = Field(description="What that check found.")
    newer: uuid.UUID | None = Field(description="The later calibration of the same subject.")
    sentence: str


class CalibrationOut(JobOut):
    source: Literal["measured", "imported"]
    model: str
    device: str = Field(description="What a worker takes it by, or the text that an import gave.")
    device_label: str = Field(description="What a reader calls it: the processor or GPU that was recorded.")
    kv_tokens: int | None = Field(description="KV cache size in tokens.")
    published: bool | None = Field(description="Whether the gate passed it; null until it has spoken.")
    reason: str = Field(description="The gate's words.")
    remarks: list[str] = Field(
        description="What to know before planning with it though the gate passed it, such as that the device was "
        "disturbed during the run; empty where there is nothing."
    )
    heldout: HeldoutOut | None
    freshness: FreshnessOut | None = Field(description="Null of one that is not done.")


class EngineOut(Schema):
    """Whose engine's steps were timed. `mixed_attention`: what decode attention in steps with a chunk may cost in
    another engine, as factors of what it cost in this one."""

    name: str
    version: str
    source: Literal["measured", "iteration log", "step table", "published curve"]
    mixed_attention: tuple[float, float]


class KVCapacityOut(Schema):
    """One entry per token budget: working memory of its largest step, and the tokens left for the KV pool."""

    budget_tokens: list[int]
    working_bytes: list[int] = Field(description="Of one rank: of the one that needs most.")
    kv_tokens: list[int] = Field(description="Of the model: as many as the rank with the least room holds.")
    label: str
    ranks: int = Field(description="Ranks that share the model.")


class TransferOut(Schema):
    """A transfer's latency and bandwidth by size; bandwidths are decimal."""

    size_bytes: list[float] = Field(description="Of all ranks together; each moves its share.")
    latency_s: list[float]
    bytes_per_s: list[float] = Field(description="Of all ranks together, as the slowest allows.")
    label: str = Field(description="What was really measured.")
    uncertainty: float = Field(description="Times may be off by a factor of 1 + this, either way.")
    entered: bool = Field(description="A person's words about a link, not a measurement.")
    ranks: int = Field(description="Ranks that moved their shares at once.")


class ChunkCostOut(Schema):
    """What it costs to cut one prompt into chunks of a size, against one pass. Weights and KV in bf16."""

    prompt_tokens: int
    chunk_tokens: int
    passes: int
    weight_rereads: int
    weight_bytes: int = Field(description="Read by all passes together.")
    prefix_reread_tokens: int = Field(description="KV of earlier chunks that later ones read again.")
    prefix_reread_bytes: int
    last_chunk_tokens: int
    fitted_s: float
    measured_s: float | None = Field(description="Null unless every chunk's very shape was timed.")
    against_one_pass: float | None = Field(
        description="Ratio of times; null where one pass was not measured."
    )
    covered: bool


class FactsOut(Schema):
    engine: EngineOut
    kv_capacity: KVCapacityOut | None = Field(description="Null where only one KV pool is known.")
    transfers: list[TransferOut]


class CalibrationDetail(CalibrationOut):
    architecture: ArchitectureOut
    envelope: dict[str, int] | None = Field(
        description="Largest batch, context and step it was measured for."
    )
    seed: int
    tensor_parallel: int = Field(
        description="Ranks that share the model; of an import, 1 unless it says more."
    )
    samples: int = Field(description="How many are stored so far.")
    environment: dict[str, Any] | None = Field(
        description="What it was measured with. Runs of ours hold ceilings (copy_bytes_per_s, matmul_flops_per_s), "
        "roofline (ridge, decode and prefill against the ceilings, reasons why it is not representative) and "
        "breakdown (shares of a profiled step of each phase: matmul, attention, memory, gaps)."
    )
    provenance: dict[str, Any]
    facts: FactsOut
    chunking: list[ChunkCostOut] = Field(
        description="Of the longest prompt that was measured and of the longest in one pass; empty without a model."
    )
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
    tensor_parallel: int = of(CalibrateForm, "tensor_parallel")
    dtype: str = of(CalibrateForm, "dtype")
    mixed_mode: str = of(CalibrateForm, "mixed_mode")
    seed: int = of(CalibrateForm, "seed")


class ImportStepsIn(Payload):
    # Multipart values are text: the form reads the numbers.
    model_config = {"strict": False}

    project: Slug | None = None
    name: str | None = of(ImportStepsForm, "name")
    model: str | None = of(ImportStepsForm, "model", default=None)  # left out where there is a config_text
    config_text: str | None = of(ImportStepsForm, "config_text", default=None)
    device: str = of(ImportStepsForm, "device", default=...)
    kv_tokens: int = of(ImportStepsForm, "kv_tokens")
    engine: str | None = of(ImportStepsForm, "engine")
    seed: int = of(ImportStepsForm, "seed")


class ImportVllmLogIn(Payload):
    model_config = {"strict": False}

    project: Slug | None = None
    name: str | None = of(ImportVllmLogForm, "name")
    model: str | None = of(ImportVllmLogForm, "model", default=None)  # left out where there is a config_text
    config_text: str | None = of(ImportVllmLogForm, "config_text", default=None)
    device: str = of(ImportVllmLogForm, "device", default=...)
    kv_tokens: int | None = of(ImportVllmLogForm, "kv_tokens")
    seed: int = of(ImportVllmLogForm, "seed")


class ImportCurvesIn(Payload):
    model_config = {"strict": False}

    project: Slug | None = None
    name: str | None = of(ImportCurvesForm, "name")
    model: str | None = of(ImportCurvesForm, "model", default=None)  # left out where there is a config_text
    config_text: str | None = of(ImportCurvesForm, "config_text", default=None)
    device: str = of(ImportCurvesForm, "device", default=...)
    hardware: str | None = of(ImportCurvesForm, "hardware")
    context_tokens: int | None = of(ImportCurvesForm, "context_tokens")
    kv_tokens: int | None = of(ImportCurvesForm, "kv_tokens")
    engine: str | None = of(ImportCurvesForm, "engine")
    seed: int = of(ImportCurvesForm, "seed")


class ImportBundledIn(Payload):
    project: Slug | None = None
    name: str = of(ImportBundledForm, "name")


class BundledOut(Schema):
    """A calibration file that comes with Ridgeline."""

    name: str = Field(description="What `import-bundled` takes.")
    sha256: str = Field(description="Of the file.")
    problem: str = Field(description="Why it cannot be imported; empty when it can.")
    model: str
    device: str
    engine: str
    steps: int
    kv_tokens: int
    published: bool = Field(description="Whether it passed the gate where it was measured.")
    provenance: dict[str, str] = Field(description="Of the run that measured it: commit, GPU, driver, when.")


class LinkIn(Payload):
    gigabytes_per_s: float = of(LinkForm, "gigabytes_per_s")
    latency_us: float = of(LinkForm, "latency_us")
    uncertainty_percent: float = of(LinkForm, "uncertainty_percent")
    label: str | None = of(LinkForm, "label")


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
