"""A calibration's ceilings, roofline and breakdown as a page shows them.

The record comes from our engine or from a file that somebody uploaded: what is not as we write it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibration.architecture import Architecture
from calibration.roofline import Ceilings, Floor, floor_of, weights_in_eight_bits

_BYTES = {"float32": 4, "float64": 8}
_STEPS = {"decode": "Decode, one sequence", "prefill": "Prefill"}
_PHASES = ("prefill", "decode", "mixed")
_MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class StepRow:
    name: str
    intensity: float
    share_of_copy: float
    share_of_matmul: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class PhaseRow:
    name: str
    matmul: float
    attention: float
    memory: float
    gaps: float


@dataclass(frozen=True, slots=True)
class DeviceTable:
    ceilings: Ceilings | None
    steps: tuple[StepRow, ...] = ()
    phases: tuple[PhaseRow, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def tera_flops_per_s(self) -> float:
        return self.ceilings.matmul_flops_per_s / 1e12 if self.ceilings else 0.0


def device_table(environment: Mapping[str, Any] | None) -> DeviceTable:
    """Rows for the page; without ceilings none."""
    known = environment or {}
    ceilings = Ceilings.from_environment(known)
    if ceilings is None:
        return DeviceTable(None)
    roofline, breakdown = _mapping(known.get("roofline")), _mapping(known.get("breakdown"))
    reasons = roofline.get("reasons")
    return DeviceTable(
        ceilings,
        tuple(row for key, name in _STEPS.items() if (row := _step(_mapping(roofline.get(key)), name))),
        tuple(shares for phase in _PHASES if (shares := _phase(_mapping(breakdown.get(phase)), phase))),
        tuple(str(reason)[:300] for reason in reasons[:8]) if isinstance(reasons, list) else (),
    )


def device_floor(architecture: Architecture, environment: Mapping[str, Any] | None) -> Floor | None:
    """The ceilings as least seconds of steps; None where none were measured."""
    known = environment or {}
    ceilings = Ceilings.from_environment(known)
    if ceilings is None:
        return None
    ranks = known.get("tensor_parallel")
    return floor_of(
        architecture, ceilings, element_bytes=_BYTES.get(str(known.get("dtype")), 2),
        tensor_parallel=ranks if type(ranks) is int and 1 <= ranks <= _MOST_RANKS else 1,
        eight_bits=weights_in_eight_bits(known),
    )  # fmt: skip


def _step(found: Mapping[str, Any], name: str) -> StepRow | None:
    numbers = _numbers(found, "intensity_flops_per_byte", "share_of_copy", "share_of_matmul")
    if numbers is None:
        return None
    tokens = found.get("tokens")
    if type(tokens) is int and tokens > 1:
        name = f"{name}, {tokens:,} tokens"
    bound_by = "arithmetic" if found.get("bound_by") == "arithmetic" else "memory"
    return StepRow(name, numbers[0], numbers[1], numbers[2], bound_by)


def _phase(found: Mapping[str, Any], name: str) -> PhaseRow | None:
    numbers = _numbers(found, "matmul", "attention", "memory", "gaps")
    if numbers is None:
        return None
    return PhaseRow(name, numbers[0], numbers[1], numbers[2], numbers[3])


def _numbers(found: Mapping[str, Any], *keys: str) -> tuple[float, ...] | None:
    values = [found.get(key) for key in keys]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
    return tuple(float(value) for value in values if value is not None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
