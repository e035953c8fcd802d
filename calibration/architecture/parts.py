"""The parts that only some architectures have: experts, a latent cache, a recurrent state, counted weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.architecture.values import UnsupportedArchitecture, flag, integer


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forwards of which a router picks `per_token` of `experts`, in `layers` of the layers.

    `shared_intermediate_size`: width of what every token passes besides, 0 where there is nothing.
    """

    experts: int
    per_token: int
    intermediate_size: int
    layers: int
    shared_intermediate_size: int = 0

    def __post_init__(self) -> None:
        if self.per_token > self.experts:
            message = f"a token cannot use {self.per_token} of {self.experts} experts"
            raise UnsupportedArchitecture("num_experts_per_tok", message)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, object]) -> Experts:
        return cls(
            experts=integer(mapping, "experts"),
            per_token=integer(mapping, "per_token"),
            intermediate_size=integer(mapping, "intermediate_size"),
            layers=integer(mapping, "layers"),
            shared_intermediate_size=integer(mapping, "shared_intermediate_size", minimum=0, default=0),
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
