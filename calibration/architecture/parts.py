"""The parts that only some architectures have: experts, a latent cache, a recurrent state, counted weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.architecture.values import UnsupportedArchitecture, flag, indices, integer, positive

_MOST_LAYERS = 1 << 10


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forwards of which a router picks `per_token` of `experts`, in `layers` of the layers.

    `shared_intermediate_size`: width of what every token passes besides, 0 where there is nothing. `dense_at`:
    the layers without experts, where those are not the first ones. How the router picks: by a softmax or
    `sigmoid` of its scores, from the `top_groups` best of `groups` groups of experts; the picked experts' scores
    are their weights, made to sum to 1 where `normalised`, times `scale`.
    """

    experts: int
    per_token: int
    intermediate_size: int
    layers: int
    shared_intermediate_size: int = 0
    dense_at: tuple[int, ...] = ()
    sigmoid: bool = False
    normalised: bool = True
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.per_token > self.experts:
            message = f"a token cannot use {self.per_token} of {self.experts} experts"
            raise UnsupportedArchitecture("num_experts_per_tok", message)
        if self.experts % self.groups or self.top_groups > self.groups:
            message = f"{self.experts} experts do not fall into {self.groups} groups, {self.top_groups} of them used"
            raise UnsupportedArchitecture("n_group", message)
        if self.per_token > self.top_groups * (self.experts // self.groups):
            message = f"{self.top_groups} groups hold fewer than {self.per_token} experts"
            raise UnsupportedArchitecture("topk_group", message)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> Experts:
        return cls(
            experts=integer(mapping, "experts"),
            per_token=integer(mapping, "per_token"),
            intermediate_size=integer(mapping, "intermediate_size"),
            layers=integer(mapping, "layers"),
            shared_intermediate_size=integer(mapping, "shared_intermediate_size", minimum=0, default=0),
            dense_at=tuple(sorted(indices(mapping, "dense_at", _MOST_LAYERS))),
            sigmoid=flag(mapping, "sigmoid"),
            normalised=flag(mapping, "normalised", True),
            groups=integer(mapping, "groups", default=1),
            top_groups=integer(mapping, "top_groups", default=1),
            scale=positive(mapping, "scale", 1.0),
        )


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2): what is cached is one vector a token and layer.

    It holds `rank` elements, from which the keys and values of all heads are made, and `rotary_size` that
    carry the position and are shared by all heads. Sizes are per head; `query_rank` 0: queries are not
    compressed. `index_key_size`: further elements a token and layer, by which a sparse attention picks tokens.
    """

    rank: int
    rotary_size: int
    nope_size: int
    value_size: int
    query_rank: int = 0
    index_key_size: int = 0

    @property
    def elements(self) -> int:
        """Cached elements of one token in one layer, the index keys apart."""
        return self.rank + self.rotary_size

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> Latent:
        return cls(
            rank=integer(mapping, "rank"),
            rotary_size=integer(mapping, "rotary_size"),
            nope_size=integer(mapping, "nope_size"),
            value_size=integer(mapping, "value_size"),
            query_rank=integer(mapping, "query_rank", minimum=0, default=0),
            index_key_size=integer(mapping, "index_key_size", minimum=0, default=0),
        )


@dataclass(frozen=True, slots=True)
class Capping:
    """Gemma 2's numbers: queries are scaled by `query_scalar` ** -0.5 instead of the head's width; scores s become
    cap * tanh(s / cap), in attention and at the output head. Defaults: those of its `transformers` class."""

    query_scalar: float = 256.0
    attention_cap: float = 50.0
    logit_cap: float = 30.0

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> Capping:
        return cls(
            query_scalar=positive(mapping, "query_scalar", 256.0),
            attention_cap=positive(mapping, "attention_cap", 50.0),
            logit_cap=positive(mapping, "logit_cap", 30.0),
        )


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """`layers` that keep `elements` (of all of them together) per sequence, whatever its length."""

    layers: int
    elements: int

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> RecurrentState:
        return cls(layers=integer(mapping, "layers"), elements=integer(mapping, "elements"))


@dataclass(frozen=True, slots=True)
class Counts:
    """Weights, where they do not follow from the dimensions alone: `total` stored, `active` used by one token,
    `products` of them multiplied with every token (without the output head). `exact`: no tensor was guessed."""

    total: int
    active: int
    products: int
    exact: bool = True

    def __post_init__(self) -> None:
        if not self.products < self.active <= self.total:
            message = f"{self.products:,} < {self.active:,} <= {self.total:,} does not hold"
            raise UnsupportedArchitecture("counts", message)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> Counts:
        return cls(
            total=integer(mapping, "total"),
            active=integer(mapping, "active"),
            products=integer(mapping, "products"),
            exact=flag(mapping, "exact"),
        )
