"""The dense decoder and what follows from its dimensions by counting (see the package's docstring)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from calibration.architecture.values import (
    UnsupportedArchitecture,
    flag,
    integer,
    optional_integer,
    positive,
    shown,
    text,
)

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class StepCounts(Protocol):
    """The part of `steptime.StepFeatures` that FLOPs depend on: float64 arrays of one shape."""

    @property
    def n(self) -> NDArray[np.float64]: ...
    @property
    def b(self) -> NDArray[np.float64]: ...
    @property
    def S(self) -> NDArray[np.float64]: ...
    @property
    def C(self) -> NDArray[np.float64]: ...
    @property
    def P(self) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """A dense decoder: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

    `quantization` is what the published weights use, for display: we count and run unquantised ones.
    """

    name: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_tokens: int = 4_096
    sliding_window_tokens: int | None = None
    windowed_layers: int = 0
    quantization: str = ""

    def __post_init__(self) -> None:
        """Relations that hold in every model of these families; raises UnsupportedArchitecture."""
        if self.model_type not in SUPPORTED_MODEL_TYPES:
            known = ", ".join(SUPPORTED_MODEL_TYPES)
            message = f"{shown(self.model_type)} is not supported (supported: {known})"
            raise UnsupportedArchitecture("model_type", message)
        if self.heads % self.kv_heads:
            message = f"{self.heads} attention heads do not divide among {self.kv_heads} KV heads"
            raise UnsupportedArchitecture("num_key_value_heads", message)
        if self.head_dim % 2:
            message = f"{self.head_dim} is odd: a rotary embedding turns pairs"
            raise UnsupportedArchitecture("head_dim", message)
        has_window = self.sliding_window_tokens is not None
        if self.windowed_layers > self.layers or (self.windowed_layers > 0) != has_window:
            message = "the number of layers with a sliding window does not fit the rest"
            raise UnsupportedArchitecture("windowed_layers", message)

    @property
    def runnable(self) -> bool:
        """Whether calibration/engine can run it (all families accepted today)."""
        return self.model_type in SUPPORTED_MODEL_TYPES

    @property
    def query_size(self) -> int:
        """Width of all query heads together; not always the hidden size."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together (the value heads have the same)."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matmul_parameters(self) -> int:
        """Weights of one layer's matrix products, without biases and norms."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def parameters(self) -> int:
        """Every stored weight, exactly."""
        biases = (self.query_size + 2 * self.kv_size) * self.qkv_bias + self.hidden_size * self.output_bias
        biases += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        per_layer = self.layer_matmul_parameters + biases + norms
        return self.layers * per_layer + embeddings + self.hidden_size

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses. A dense model uses all of them."""
        return self.parameters

    def weight_bytes(self, bytes_per_weight: float = 2) -> int:
        """Bytes of all weights, every one stored in `bytes_per_weight` (bf16: 2)."""
        return math.ceil(self.parameters * bytes_per_weight)

    def kv_bytes_per_token(self, bytes_per_element: int = 2, tensor_parallel: int = 1) -> int:
        """Bytes one token adds to the KV caches of all layers and ranks while no window is full."""
        per_layer = 2 * max(self.kv_heads, tensor_parallel) * self.head_dim * bytes_per_element
        return self.layers * per_layer

    def kv_bytes_per_token_windowed(self, bytes_per_element: int = 2, tensor_parallel: int = 1) -> int:
        """The part of `kv_bytes_per_token` in layers that keep at most `sliding_window_tokens`."""
        total = self.kv_bytes_per_token(bytes_per_element, tensor_parallel)
        return total // self.layers * self.windowed_layers

    def kv_bytes_per_token_growing(self, bytes_per_element: int = 2, tensor_parallel: int = 1) -> int:
        """The part of `kv_bytes_per_token` in layers that keep every token."""
        total = self.kv_bytes_per_token(bytes_per_element, tensor_parallel)
        return total - self.kv_bytes_per_token_windowed(bytes_per_element, tensor_parallel)

    def step_flops(self, step: StepCounts) -> NDArray[np.float64]:
        """Floating-point operations of steps, same shape as the features: matrix products, attention, head.

        Attention is causal and counted without the masked half: P pairs in chunks; a decode row attends to
        its context and itself, so decodes add C + b pairs. Windows are not subtracted (an upper bound there).
        """
        products = 2.0 * self.layers * self.layer_matmul_parameters * step.n
        head = 2.0 * self.vocab_size * self.hidden_size * step.S
        pairs = 4.0 * self.layers * self.query_size * (step.C + step.b + step.P)
        return np.asarray(products + head + pairs, dtype=np.float64)

    def to_dict(self) -> dict[str, object]:
        """All fields, JSON-safe; `from_dict` gives an equal object back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> Architecture:
        """Inverse of `to_dict`, bounded like parse_config; raises only UnsupportedArchitecture."""
        if not isinstance(mapping, Mapping):
            raise UnsupportedArchitecture("architecture", f"must be an object, got {shown(mapping)}")
        known = {field.name for field in dataclasses.fields(cls)}
        for key in mapping:
            if key not in known:
                raise UnsupportedArchitecture("architecture", f"has no field {shown(key)}")
        return cls(
            name=text(mapping, "name", required=False),
            model_type=text(mapping, "model_type"),
            layers=integer(mapping, "layers"),
            hidden_size=integer(mapping, "hidden_size"),
            heads=integer(mapping, "heads"),
            kv_heads=integer(mapping, "kv_heads"),
            head_dim=integer(mapping, "head_dim"),
            intermediate_size=integer(mapping, "intermediate_size"),
            vocab_size=integer(mapping, "vocab_size"),
            tie_word_embeddings=flag(mapping, "tie_word_embeddings"),
            qkv_bias=flag(mapping, "qkv_bias"),
            output_bias=flag(mapping, "output_bias"),
            mlp_bias=flag(mapping, "mlp_bias"),
            qk_norm=flag(mapping, "qk_norm"),
            rope_theta=positive(mapping, "rope_theta", 10_000.0),
            rms_norm_eps=positive(mapping, "rms_norm_eps", 1e-6),
            max_position_tokens=integer(mapping, "max_position_tokens"),
            sliding_window_tokens=optional_integer(mapping, "sliding_window_tokens"),
            windowed_layers=integer(mapping, "windowed_layers", minimum=0, default=0),
            quantization=text(mapping, "quantization", required=False),
        )
