"""Steps against their device's ceilings: how near a calibration comes to what the device can do.

The roofline (Williams 2009): a step moves bytes and does operations; it cannot be faster than either ceiling allows,
  floor = max(bytes / copy rate, operations / matmul rate)
and its arithmetic intensity, operations per byte, says which one binds: below the ridge (matmul rate / copy rate) the
memory, above it the arithmetic. Decode of one sequence reads every weight for one token's work and lies far below;
a prompt of 2,048 tokens does 2,048 times the work for the same bytes and lies above.
Below these shares of its ceilings an engine is not one that a server would run, and what it measured is labelled "not
representative": decode of one sequence 65 % of the copy rate, prefill of about 2,048 tokens 60 %
of the matmul rate. That judges GPUs; on a CPU core the shares are shown and the label is left alone.
Bytes are weights once, the KV read and written; activations are not counted. Of weights in 8 bits projections and
experts are a byte each, and the matmul rate is that of such products. Units: seconds, bytes, operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.architecture import Architecture
from calibration.steptime import StepFeatures, StepSample, StepShape, features_of

Floats = NDArray[np.float64]
Floor = Callable[[StepFeatures], Floats]

DECODE_FLOOR = 0.65
PREFILL_FLOOR = 0.60
PREFILL_TOKENS = 2_048


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of one device: bytes per second read and written by a copy, operations per second of a large product."""

    copy_bytes_per_s: float
    matmul_flops_per_s: float

    @property
    def ridge(self) -> float:
        """Operations per byte above which arithmetic binds."""
        return self.matmul_flops_per_s / self.copy_bytes_per_s

    @classmethod
    def from_environment(cls, environment: Mapping[str, Any]) -> Ceilings | None:
        """As a calibration's environment has them; None where it has none that mean anything."""
        found = environment.get("ceilings")
        if not isinstance(found, Mapping):
            return None
        rates = [found.get("copy_bytes_per_s"), found.get("matmul_flops_per_s")]
        if not all(
            isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0 for rate in rates
        ):
            return None
        return cls(float(rates[0]), float(rates[1]))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Load:
    """What a step moves and does, all ranks together."""

    moved_bytes: float
    operations: float

    @property
    def intensity(self) -> float:
        return self.operations / self.moved_bytes

    def floor_s(self, ceilings: Ceilings) -> float:
        return max(
            self.moved_bytes / ceilings.copy_bytes_per_s, self.operations / ceilings.matmul_flops_per_s
        )


def weights_in_eight_bits(environment: Mapping[str, Any]) -> bool:
    """Whether an engine's record says so."""
    return str(environment.get("weights", "")).startswith("float8")


def load_of(
    shape: StepShape,
    architecture: Architecture,
    *,
    element_bytes: int = 2,
    tensor_parallel: int = 1,
    eight_bits: bool = False,
) -> Load:
    """What a step of this shape must at least move and do. `eight_bits`: projections and experts are stored so."""
    a = architecture
    features = features_of([shape])
    n = float(features.n[0])
    weights = float(_weight_bytes(a, features.n, element_bytes, eight_bits)[0])
    token_bytes = a.kv_bytes_per_token(element_bytes, tensor_parallel)
    windowed = a.kv_bytes_per_token_windowed(element_bytes, tensor_parallel)
    read = 0.0
    for context in (*shape.decode_contexts, *(chunk.cached_tokens for chunk in shape.chunks)):
        kept = min(context, a.sliding_window_tokens) if a.sliding_window_tokens else context
        read += context * (token_bytes - windowed) + kept * windowed
    return Load(weights + read + n * token_bytes, float(a.step_flops(features)[0]))


def floor_of(
    architecture: Architecture,
    ceilings: Ceilings,
    *,
    element_bytes: int = 2,
    tensor_parallel: int = 1,
    eight_bits: bool = False,
) -> Floor:
    """The least seconds of steps by their features, one chunk at most each: what the curves are drawn against."""
    a = architecture
    growing = a.kv_bytes_per_token_growing(element_bytes, tensor_parallel)
    windowed = a.kv_bytes_per_token_windowed(element_bytes, tensor_parallel)

    def floor(features: StepFeatures) -> Floats:
        alone = (features.kvm > 0) & (features.b == 0)  # beside decodes kvm may be a decode's context
        cached = np.where(alone, np.maximum(0.0, features.kvm - features.n), 0.0)
        read = features.C + cached
        kept = read
        if a.sliding_window_tokens is not None:
            kept = np.minimum(read, a.sliding_window_tokens * (features.b + alone))
        moved = _weight_bytes(a, features.n, element_bytes, eight_bits) + read * growing + kept * windowed
        moved = moved + features.n * (growing + windowed)
        by_arithmetic = a.step_flops(features) / ceilings.matmul_flops_per_s
        return np.asarray(np.maximum(moved / ceilings.copy_bytes_per_s, by_arithmetic), dtype=np.float64)

    return floor


def _weight_bytes(a: Architecture, n: Floats, element_bytes: int, eight_bits: bool) -> Floats:
    """Weights that n tokens read: of experts, a token misses each one with chance 1 - k/E."""
    head = a.vocab_size * a.hidden_size
    stored = a.parameters - head * (not a.tie_word_embeddings)
    kept = 0.0
    if (
        eight_bits
    ):  # what stays in the engine's own type: the head, and what a latent is made and multiplied out with
        kept = float(head)
        if a.latent is not None:
            kept += a.layers * a.heads * a.latent.rank * (a.latent.nope_size + a.latent.value_size)
        kept *= element_bytes - 1
        element_bytes = 1
    if a.experts is None:
        return np.full_like(n, stored * element_bytes + kept)
    share = a.experts.per_token / a.experts.experts
    routed = (a.parameters - a.active_parameters) / (1 - share) if share < 1 else 0.0
    return np.asarray((stored - routed * (1 - share) ** n) * element_bytes + kept, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Judged:
    """The two steps that the floors are about, against their ceilings; None where none was measured."""

    ceilings: Ceilings
    decode: dict[str, Any] | None
    prefill: dict[str, Any] | None
    reasons: tuple[
        str, ...
    ]  # why a result is not representative; empty when it is, or nothing speaks against it

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe; `ridge_flops_per_byte` with the shares and intensities of the two steps."""
        return {
            "ridge_flops_per_byte": self.ceilings.ridge,
            "decode": self.decode,
            "prefill": self.prefill,
            "reasons": list(self.reasons),
        }


def judge(
    samples: Sequence[StepSample],
    architecture: Architecture,
    ceilings: Ceilings,
    *,
    element_bytes: int = 2,
    tensor_parallel: int = 1,
    eight_bits: bool = False,
    gpu: bool,
) -> Judged:
    """Compares the decode of one sequence with the shortest context, and the prefill nearest to 2,048 tokens."""

    def against(sample: StepSample) -> dict[str, Any]:
        load = load_of(
            sample.shape, architecture, element_bytes=element_bytes, tensor_parallel=tensor_parallel,
            eight_bits=eight_bits,
        )  # fmt: skip
        return {
            "seconds": sample.median_s,
            "tokens": _tokens(sample.shape),
            "intensity_flops_per_byte": load.intensity,
            "share_of_copy": load.moved_bytes / sample.median_s / ceilings.copy_bytes_per_s,
            "share_of_matmul": load.operations / sample.median_s / ceilings.matmul_flops_per_s,
            "bound_by": "arithmetic" if load.intensity > ceilings.ridge else "memory",
        }

    one = [s for s in samples if not s.shape.chunks and len(s.shape.decode_contexts) == 1]
    long = [s for s in samples if len(s.shape.chunks) == 1 and not s.shape.decode_contexts]
    long = [s for s in long if s.shape.chunks[0].cached_tokens == 0]
    decode = against(min(one, key=lambda s: s.shape.decode_contexts[0])) if one else None
    nearest = min(long, key=lambda s: abs(np.log(_tokens(s.shape) / PREFILL_TOKENS)), default=None)
    prefill = against(nearest) if nearest else None
    return Judged(ceilings, decode, prefill, _reasons(decode, prefill) if gpu else ())


def _reasons(decode: dict[str, Any] | None, prefill: dict[str, Any] | None) -> tuple[str, ...]:
    found = []
    if decode is None:
        found.append(
            "no decode of one sequence was measured, so nothing shows that it reaches the memory's rate"
        )
    elif decode["share_of_copy"] < DECODE_FLOOR:
        found.append(
            f"decode of one sequence reaches {decode['share_of_copy']:.0%} of the measured copy bandwidth, "
            f"not {DECODE_FLOOR:.0%}"
        )
    if prefill is None or not PREFILL_TOKENS / 2 <= prefill["tokens"] <= PREFILL_TOKENS * 2:
        found.append(f"no prefill near {PREFILL_TOKENS:,} tokens was measured")
    elif prefill["share_of_matmul"] < PREFILL_FLOOR:
        found.append(
            f"a prefill of {prefill['tokens']:,} tokens reaches {prefill['share_of_matmul']:.0%} of the measured "
            f"matmul rate, not {PREFILL_FLOOR:.0%}"
        )
    return tuple(found)


def _tokens(shape: StepShape) -> int:
    return len(shape.decode_contexts) + sum(chunk.query_tokens for chunk in shape.chunks)
