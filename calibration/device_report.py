"""What a calibration says of its device beside step times: ceilings, the roofline, where each phase's time goes.

Asked of the engine that timed the steps, after it has timed them. A part that fails is left out with its reason: the
step times stand without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from calibration.architecture import Architecture
from calibration.engine.client import EngineError
from calibration.engine.interface import ChunkTuple
from calibration.experiment import Envelope
from calibration.roofline import PREFILL_TOKENS, Ceilings, judge, weights_in_eight_bits
from calibration.steptime import StepSample

_CONTEXT_TOKENS = 1_024  # of the profiled decodes, where the envelope has as much
_BYTES = {"float32": 4, "float64": 8}


class Reporter(Protocol):
    def environment(self) -> dict[str, object]: ...
    def ceilings(self) -> dict[str, float]: ...
    def breakdown(
        self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int
    ) -> dict[str, float]: ...


def device_report(
    engine: Reporter,
    architecture: Architecture,
    envelope: Envelope,
    samples: Sequence[StepSample],
    *,
    kv_tokens: int,
    seed: int,
    gpu: bool,
) -> dict[str, Any]:
    """Entries for a calibration's environment: ceilings, roofline, breakdown, representative; JSON-safe."""
    found: dict[str, Any] = {}
    try:
        found["ceilings"] = engine.ceilings()
        found["breakdown"] = {
            phase: engine.breakdown(decodes, chunks, seed)
            for phase, (decodes, chunks) in profiled_steps(envelope, kv_tokens).items()
        }
    except EngineError as error:
        found["device_report_error"] = str(error)[:500]
    known = engine.environment()
    ceilings = Ceilings.from_environment(found)
    if ceilings is None:
        return found
    judged = judge(
        samples, architecture, ceilings, element_bytes=_BYTES.get(str(known.get("dtype")), 2),
        tensor_parallel=int(str(known.get("tensor_parallel", 1))), eight_bits=weights_in_eight_bits(known), gpu=gpu,
    )  # fmt: skip
    captured = {key: value for key, value in known.items() if key.startswith("captured_")}
    found |= {"roofline": judged.to_dict()} | captured
    if gpu:
        found["representative"] = not judged.reasons and known.get("operations") != "torch"
    return found


def profiled_steps(
    envelope: Envelope, kv_tokens: int
) -> dict[str, tuple[tuple[int, ...], tuple[ChunkTuple, ...]]]:
    """One step of each phase: a prompt of up to 2,048 tokens; the largest batch of decodes that the pool holds at up
    to 1,024 tokens; both, each half as large."""
    block = 16
    prompt = max(1, min(PREFILL_TOKENS, envelope.max_step_tokens, envelope.max_context_tokens))
    context = max(1, min(_CONTEXT_TOKENS, envelope.max_context_tokens - 1))
    blocks, each = kv_tokens // block, -(-(context + 1) // block)
    rows = max(1, min(envelope.max_batch, blocks // each))
    beside = max(1, min(rows // 2, (blocks - -(-prompt // block)) // each))
    half = max(1, min(prompt // 2, envelope.max_step_tokens - beside))
    return {
        "prefill": ((), ((prompt, 0, True),)),
        "decode": ((context,) * rows, ()),
        "mixed": ((context,) * beside, ((half, 0, True),)),
    }
