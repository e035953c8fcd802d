"""The Architecture: dimensions, and what follows from them by counting (see the package's docstring)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from calibration.architecture import stored
from calibration.architecture.kinds import DENSE, NOT_RUN, SUPPORTED_MODEL_TYPES
from calibration.architecture.parts import Capping, Counts, Experts, Latent, RecurrentState
from calibration.architecture.values import UnsupportedArchitecture, shown


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
    """A decoder. Without the fields from `cached_layers` on: RMSNorm, rotary embedding, grouped-query
    attention, SwiGLU in every layer.

    `intermediate_size` is a dense feed-forward's width, or an expert's where every layer has experts.
    `cached_layers`: layers with a KV cache, None when all have one. `chunked`: the window is a chunk that
    starts afresh, not one that slides. `windowed_at`: which layers have the window, where that is not the
    family's way (Gemma 2: every other from the first; any other: the last ones). `quantization` is what the
    published weights use, for display: we count and run unquantised ones. `counts`: None where weights follow
    from the dimensions. `notes`: what else the file says that these numbers leave out.
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
    cached_layers: int | None = None
    chunked: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    state: RecurrentState | None = None
    counts: Counts | None = None
    notes: tuple[str, ...] = ()
    windowed_at: tuple[int, ...] = ()
    capping: Capping | None = None

    def __post_init__(self) -> None:
        """Relations that hold in every model of these families; raises UnsupportedArchitecture."""
        if self.model_type not in SUPPORTED_MODEL_TYPES:
            known = ", ".join(SUPPORTED_MODEL_TYPES)
            message = f"{shown(self.model_type)} is not supported (supported: {known})"
            raise UnsupportedArchitecture("model_type", message)
        if self.heads % self.kv_heads:
            message = f"{self.heads} attention heads do not divide among {self.kv_heads} KV heads"
            raise UnsupportedArchitecture("num_key_value_heads", message)
        if self.model_type in DENSE and self.head_dim % 2:
            message = f"{self.head_dim} is odd: a rotary embedding turns pairs"
            raise UnsupportedArchitecture("head_dim", message)
        has_window = self.sliding_window_tokens is not None
        if self.windowed_layers > self.kv_layers or (self.windowed_layers > 0) != has_window:
            message = "the number of layers with a sliding window does not fit the rest"
            raise UnsupportedArchitecture("windowed_layers", message)
        if self.kv_layers < 1:
            raise UnsupportedArchitecture(
                "cached_layers", "no layer has a KV cache: there is nothing to plan"
            )
        if self.kv_layers + (self.state.layers if self.state else 0) > self.layers:
            raise UnsupportedArchitecture("cached_layers", f"there are only {self.layers} layers")
        if self.experts is not None and self.experts.layers > self.layers:
            raise UnsupportedArchitecture("experts", f"there are only {self.layers} layers")
        if self.windowed_at and (
            len(self.windowed_at) != self.windowed_layers or self.windowed_at[-1] >= self.layers
        ):
            raise UnsupportedArchitecture("windowed_at", "must name each layer with a window once")
        dense = self.experts.dense_at if self.experts else ()
        if (
            self.experts
            and dense
            and (len(dense) + self.experts.layers != self.layers or dense[-1] >= self.layers)
        ):
            raise UnsupportedArchitecture("dense_at", "must name each layer without experts once")
        special = self.cached_layers is not None or self.experts or self.latent or self.state or self.chunked
        if (self.model_type in DENSE) == (self.counts is not None) or (self.counts is None and special):
            message = f"the weights of {self.model_type} are counted otherwise"
            raise UnsupportedArchitecture("counts", message)

    @property
    def not_run_reason(self) -> str:
        """Why calibration/engine does not run it, in words; empty when it does."""
        return NOT_RUN.get(self.model_type, "")

    @property
    def runnable(self) -> bool:
        """Whether calibration/engine can run it, or it can only be described."""
        return not self.not_run_reason

    def window_at(self, layer: int) -> int | None:
        """Tokens that the layer's attention sees at most, the current one included; None: all."""
        if self.windowed_at:
            has_window = layer in self.windowed_at
        elif self.model_type == "gemma2":
            has_window = layer % 2 == 0 and layer // 2 < self.windowed_layers
        else:
            has_window = layer >= self.layers - self.windowed_layers
        return self.sliding_window_tokens if has_window else None

    def experts_at(self, layer: int) -> Experts | None:
        """The experts of the layer; None where its feed-forward is dense."""
        if self.experts is None:
            return None
        dense = self.experts.dense_at or range(self.layers - self.experts.layers)
        return None if layer in dense else self.experts

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
        """Weights of one dense layer's matrix products, without biases and norms."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def product_parameters(self) -> int:
        """Weights that one token is multiplied with, the output head apart."""
        return self.counts.products if self.counts else self.layers * self.layer_matmul_parameters

    @property
    def parameters(self) -> int:
        """Every stored weight; exactly, unless `parameters_exact` is False."""
        if self.counts is not None:
            return self.counts.total
        biases = (self.query_size + 2 * self.kv_size) * self.qkv_bias + self.hidden_size * self.output_bias
        biases += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        norms = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        per_layer = self.layer_matmul_parameters + biases + norms
        return self.layers * per_layer + embeddings + self.hidden_size

    @property
    def parameters_exact(self) -> bool:
        """Whether every tensor was counted, none guessed."""
        return self.counts is None or self.counts.exact

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses: all but the experts it is not routed to."""
        return self.counts.active if self.counts else self.parameters

    def weight_bytes(self, bytes_per_weight: float = 2) -> int:
        """Bytes of all weights, every one stored in `bytes_per_weight` (bf16: 2)."""
        return math.ceil(self.parameters * bytes_per_weight)

    @property
    def kv_layers(self) -> int:
        """Layers with a KV cache."""
        return self.layers if self.cached_layers is None else self.cached_layers

    def kv_bytes_per_token(self, bytes_per_element: int = 2, tensor_parallel: int = 1) -> int:
        """Bytes one token adds to the KV caches of all layers and ranks while no window is full."""
        return self.kv_layers * self._layer_kv_bytes(bytes_per_element, tensor_parallel)

    def kv_bytes_per_token_windowed(self, bytes_per_element: int = 2, tensor_parallel: int = 1) -> int:
        """The part of `kv_bytes_per_token` in layers that keep at most `sliding_window_tokens`."""
        return self.windowed_layers * self._layer_kv_bytes(bytes_per_element, tensor_parallel)

    def kv_bytes_per_token_growing(self, bytes_per_element: int = 2, tensor_parallel: int = 1) -> int:
        """The part of `kv_bytes_per_token` in layers that keep every token."""
        growing = self.kv_layers - self.windowed_layers
        return growing * self._layer_kv_bytes(bytes_per_element, tensor_parallel)

    def kv_bytes_of_sequence(
        self, tokens: int, *, block_tokens: int = 16, bytes_per_element: int = 2, tensor_parallel: int = 1
    ) -> int:
        """KV bytes of a sequence of `tokens` on all ranks, in whole blocks of `block_tokens`.

        A layer with a window holds the blocks that its last tokens touch; other layers hold all.
        """
        blocks = -(-tokens // block_tokens)
        kept = blocks
        if self.sliding_window_tokens is not None and tokens > 0:
            window = self.sliding_window_tokens
            first = (tokens - 1) // window * window if self.chunked else max(0, tokens - window)
            kept = blocks - first // block_tokens
        growing = self.kv_bytes_per_token_growing(bytes_per_element, tensor_parallel)
        windowed = self.kv_bytes_per_token_windowed(bytes_per_element, tensor_parallel)
        return block_tokens * (blocks * growing + kept * windowed)

    def _layer_kv_bytes(self, bytes_per_element: int, tensor_parallel: int) -> int:
        if self.latent is not None:  # one vector that all heads share: each rank needs all of it
            return tensor_parallel * self.latent.elements * bytes_per_element
        return 2 * max(self.kv_heads, tensor_parallel) * self.head_dim * bytes_per_element

    @property
    def flops_per_token(self) -> int:
        """Operations of one sampled token without a context: 2 per active weight that is multiplied."""
        return 2 * (self.product_parameters + self.vocab_size * self.hidden_size)

    def step_flops(self, step: StepCounts) -> NDArray[np.float64]:
        """Floating-point operations of steps, same shape as the features: matrix products, attention, head.

        Attention is causal and counted without the masked half: P pairs in chunks; a decode row attends to
        its context and itself, so decodes add C + b pairs. Windows are not subtracted (an upper bound there),
        a latent cache is counted as if keys and values were made first, a recurrent layer's state is not
        counted.
        """
        products = 2.0 * self.product_parameters * step.n
        head = 2.0 * self.vocab_size * self.hidden_size * step.S
        value_size = self.latent.value_size if self.latent else self.head_dim
        per_pair = 2.0 * self.kv_layers * self.heads * (self.head_dim + value_size)
        return np.asarray(products + head + per_pair * (step.C + step.b + step.P), dtype=np.float64)

    def to_dict(self) -> dict[str, object]:
        """All fields, JSON-safe; `from_dict` gives an equal object back."""
        return stored.to_dict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> Architecture:
        """Inverse of `to_dict`, bounded like parse_config; raises only UnsupportedArchitecture."""
        return cls(**stored.fields_of(mapping))
