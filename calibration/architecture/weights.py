"""Counting weights part by part, for the families whose layers differ from each other.

Of every part three numbers are kept, because three questions are asked: how many weights are multiplied with
a token (`products`: 2 operations each), how many are stored beside them (`other`: norms, biases, tables,
convolutions) and how many one token leaves unused (`idle`: the experts it is not routed to). So
  stored = products + other + idle,   active = products + other.
A published "A22B" counts the embedding table as active, and so do we; the model's maker may not.
Source: the parameter shapes of the `transformers` class of each family, or of the code published with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from calibration.architecture.parts import Counts


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of a part, in elements."""

    products: int = 0
    other: int = 0
    idle: int = 0

    def __add__(self, more: Weights) -> Weights:
        return Weights(self.products + more.products, self.other + more.other, self.idle + more.idle)

    def __mul__(self, times: int) -> Weights:
        return Weights(self.products * times, self.other * times, self.idle * times)


def linear(inputs: int, outputs: int, bias: bool = False) -> Weights:
    return Weights(inputs * outputs, outputs * bias)


def rms_norm(size: int) -> Weights:
    return Weights(other=size)


def layer_norm(size: int, bias: bool = True) -> Weights:
    return Weights(other=size * (1 + bias))


def attention(
    hidden: int, queries: int, keys: int, *, qkv_bias: bool = False, output_bias: bool = False
) -> Weights:
    """Four projections; `queries` and `keys` are the widths of all heads together, values are as wide as keys."""
    return linear(hidden, queries + 2 * keys, qkv_bias) + linear(queries, hidden, output_bias)


def gated(hidden: int, inner: int, bias: bool = False) -> Weights:
    """A feed-forward with three matrices: gate, up, down."""
    return linear(hidden, 2 * inner, bias) + linear(inner, hidden, bias)


def plain(hidden: int, inner: int, bias: bool = False) -> Weights:
    """A feed-forward with two matrices: up, down."""
    return linear(hidden, inner, bias) + linear(inner, hidden, bias)


def routed(one: Weights, experts: int, per_token: int) -> Weights:
    """`experts` alike, of which a token uses `per_token`."""
    return one * per_token + Weights(idle=(one.products + one.other) * (experts - per_token))


def counts(layers: Weights, hidden: int, vocab: int, *, tied: bool, exact: bool = True) -> Counts:
    """`layers` and what stands around them (norms, position tables), with embedding and head added."""
    active = layers.products + layers.other + vocab * hidden * (1 if tied else 2)
    return Counts(active + layers.idle, active, layers.products, exact)
