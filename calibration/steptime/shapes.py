"""What one engine step contains, and the seven numbers its duration depends on.

A step is a set of rows: decode rows (one query token each, context = tokens already in their KV cache)
and prefill chunks (q query tokens after p cached ones). Its features (shared by fit, check model and
simulation; all counts of tokens or rows, exact in float64):

    n     all query tokens                 b     decode rows
    S     rows that produce logits         C     sum of decode contexts
    cmax  the longest decode context       P     query-key pairs of the chunks, sum of q*(p + (q+1)/2)
    kvm   max(cmax, max(p+q)) where a chunk is present, else 0: the longest KV a mixed kernel walks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["decode", "prefill", "mixed"]

#: Order of the features wherever they form the columns of a matrix.
FEATURE_NAMES = ("n", "b", "S", "C", "cmax", "P", "kvm")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A prefill chunk: `query_tokens` (>= 1) computed after `cached_tokens` (>= 0) of the same prompt."""

    query_tokens: int
    cached_tokens: int
    samples: bool = True  # the chunk completes its prompt, so the step samples a token for it

    def __post_init__(self) -> None:
        if self.query_tokens < 1 or self.cached_tokens < 0:
            raise ValueError(f"a chunk needs query_tokens >= 1 and cached_tokens >= 0, not {self}")


@dataclass(frozen=True, slots=True)
class StepShape:
    """The rows of one step. A decode's context is the tokens in its KV cache before the step."""

    decode_contexts: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    def __post_init__(self) -> None:
        if not self.decode_contexts and not self.chunks:
            raise ValueError("a step needs at least one row")
        if self.decode_contexts and min(self.decode_contexts) < 0:
            raise ValueError("decode contexts must be >= 0")

    @property
    def kind(self) -> Kind:
        if not self.chunks:
            return "decode"
        return "mixed" if self.decode_contexts else "prefill"

    @property
    def features(self) -> tuple[float, float, float, float, float, float, float]:
        """(n, b, S, C, cmax, P, kvm), the arguments of `scalar.step_seconds` in its order."""
        rows = len(self.decode_contexts)
        cmax = max(self.decode_contexts, default=0)
        return (
            float(rows + sum(c.query_tokens for c in self.chunks)),
            float(rows),
            float(rows + sum(c.samples for c in self.chunks)),
            float(sum(self.decode_contexts)),
            float(cmax),
            float(sum(c.query_tokens * (c.cached_tokens + (c.query_tokens + 1) / 2) for c in self.chunks)),
            float(max(cmax, *(c.cached_tokens + c.query_tokens for c in self.chunks)) if self.chunks else 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON form: {"decode": [contexts], "chunks": [[query, cached, samples 0|1], ...]}."""
        return {
            "decode": list(self.decode_contexts),
            "chunks": [[c.query_tokens, c.cached_tokens, int(c.samples)] for c in self.chunks],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepShape:
        return cls(
            tuple(int(c) for c in data["decode"]),
            tuple(Chunk(int(q), int(p), bool(s)) for q, p, s in data["chunks"]),
        )


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """Features of many steps: seven float64 arrays of one shape (see the module's docstring)."""

    n: Floats
    b: Floats
    S: Floats
    C: Floats
    cmax: Floats
    P: Floats
    kvm: Floats

    def __len__(self) -> int:
        return len(self.n)

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        return iter(map(tuple, self.matrix().tolist()))

    def __getitem__(self, rows: Any) -> StepFeatures:
        """The steps that a mask, a slice or an index array selects."""
        return StepFeatures(*(getattr(self, name)[rows] for name in FEATURE_NAMES))

    @property
    def has_chunk(self) -> NDArray[np.bool_]:
        return np.asarray(self.P > 0)

    def matrix(self) -> Floats:
        """float64[steps, 7], columns as FEATURE_NAMES."""
        return np.stack([getattr(self, name) for name in FEATURE_NAMES], axis=-1)

    @classmethod
    def from_matrix(cls, matrix: Floats) -> StepFeatures:
        columns = np.moveaxis(np.asarray(matrix, dtype=np.float64), -1, 0)
        return cls(*(np.ascontiguousarray(column) for column in columns))


def features_of(shapes: Iterable[StepShape]) -> StepFeatures:
    """Features of `shapes`, in their order."""
    return StepFeatures.from_matrix(np.array([s.features for s in shapes], dtype=np.float64).reshape(-1, 7))


def kind_of(shape: StepShape) -> Kind:
    """ "decode" (no chunk), "prefill" (chunks alone) or "mixed"."""
    return shape.kind


def kinds_of(features: StepFeatures) -> Sequence[Kind]:
    """As `kind_of`, for each step of `features`."""
    chunk, rows = features.has_chunk, features.b > 0
    return ["decode" if not c else "mixed" if r else "prefill" for c, r in zip(chunk, rows, strict=True)]
