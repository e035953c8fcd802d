"""Scoring a model on samples it has not seen, and the gate that decides whether it may be published.

The error of a sample is |predicted/measured - 1| on the median of its repeats. The signed bias on pure decode
stands apart: a fit can score well over all shapes and be 12 % off where a server spends most of its time.
The bars are those the project holds itself to (GPU 4 % / 12 %, CPU 6 % / 15 %: median / 90th percentile).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.model import StepTimeModel
from calibration.steptime.samples import FITTED_ROLES, StepSample
from calibration.steptime.shapes import Kind, features_of

DeviceKind = Literal["cpu", "gpu"]

#: Largest held-out median and 90th-percentile error with which a calibration is published.
BARS: dict[DeviceKind, tuple[float, float]] = {"cpu": (0.06, 0.15), "gpu": (0.04, 0.12)}
MIN_HELDOUT = 6
LEVEL = 0.9
MAX_ROWS = 400


#: Words by which people name processors and GPUs, where step times were measured elsewhere.
_PROCESSOR = re.compile(
    r"\b(?:cpus?|processors?|xeon|epyc|opteron|ryzen|threadripper|core[ -]?(?:i[3579]|ultra)|graviton\d?|neoverse"
    r"|altra)\b"
)
_GPU = re.compile(
    r"\b(?:gpus?|nvidia|cuda|geforce|[rg]tx|tesla|quadro|radeon|instinct|gaudi|tpu|[abhlvt]\d{1,3}[a-z]?)\b"
)


def device_kind(device: str) -> DeviceKind:
    """Which bars and rules a device is held to: "cpu" and "cuda:0" as ours are called, of others what their name says.
    One that says nothing is held to a GPU's bars, the tighter ones."""
    name = device.lower()
    if name.startswith("cpu"):
        return "cpu"
    return "cpu" if _PROCESSOR.search(name) and not _GPU.search(name) else "gpu"


@dataclass(frozen=True, slots=True)
class HeldoutRow:
    """One scored sample, seconds; `error` is signed: predicted/measured - 1. The interval is at LEVEL."""

    kind: Kind
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    error: float
    covered: bool


@dataclass(frozen=True, slots=True)
class HeldoutReport:
    """Errors are ratios (0.05 is 5 %). `decode_bias`: mean signed error of pure decode; None without any."""

    median: float
    p90: float
    decode_bias: float | None
    inside: float  # share of samples whose measurement lies in its interval
    by_kind: dict[str, tuple[int, float, float]]  # kind -> (samples, median, p90)
    bias: dict[str, float]  # kind, and "all" -> mean signed error
    rows: tuple[HeldoutRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe form, rows in the order of the samples: every k-th, so that at most MAX_ROWS are kept."""
        step = -(-len(self.rows) // MAX_ROWS)
        return asdict(replace(self, rows=self.rows[:: max(1, step)])) | {"scored": len(self.rows)}


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a calibration may be published, and why in a sentence."""

    passed: bool
    reason: str


def heldout_report(model: StepTimeModel, samples: Sequence[StepSample]) -> HeldoutReport:
    """Score `model` on `samples`, none of which it was fitted to (ValueError if one was, or if none is given)."""
    if not samples:
        raise ValueError("there is no held-out sample to score")
    if any(s.role in FITTED_ROLES for s in samples):
        raise ValueError("a sample that was fitted is never scored")
    features = features_of(s.shape for s in samples)
    measured = np.array([s.median_s for s in samples])
    predicted, covered = model.predict_s(features), model.covered(features)
    low, high = model.interval_s(features, LEVEL)
    signed = predicted / measured - 1.0
    size = np.abs(signed)
    kinds = np.array([s.kind for s in samples])
    decode = kinds == "decode"
    rows = tuple(
        HeldoutRow(s.kind, float(t), float(p), float(a), float(z), float(e), bool(c))
        for s, t, p, a, z, e, c in zip(samples, measured, predicted, low, high, signed, covered, strict=True)
    )
    return HeldoutReport(
        median=float(np.median(size)),
        p90=float(np.percentile(size, 90)),
        decode_bias=float(signed[decode].mean()) if decode.any() else None,
        inside=float(np.mean((low <= measured) & (measured <= high))),
        by_kind={str(kind): _summary(size[kinds == kind]) for kind in np.unique(kinds)},
        bias={str(kind): float(signed[kinds == kind].mean()) for kind in np.unique(kinds)}
        | {"all": float(signed.mean())},
        rows=rows,
    )


def _summary(errors: NDArray[np.float64]) -> tuple[int, float, float]:
    return len(errors), float(np.median(errors)), float(np.percentile(errors, 90))


def gate(report: HeldoutReport, device_kind: DeviceKind = "gpu") -> Gate:
    """Hold the report against the bars of its kind of device."""
    median_bar, p90_bar = BARS[device_kind]
    found = f"held-out error on {len(report.rows)} steps: median {report.median:.1%} (bar {median_bar:.0%}), "
    found += f"p90 {report.p90:.1%} (bar {p90_bar:.0%})"
    if len(report.rows) < MIN_HELDOUT:
        return Gate(False, f"refused: {found}; at least {MIN_HELDOUT} held-out steps are needed to judge")
    over = [
        name
        for name, value, bar in (("median", report.median, median_bar), ("p90", report.p90, p90_bar))
        if not value <= bar
    ]
    if over:
        worst = max(report.rows, key=lambda row: abs(row.error))
        return Gate(
            False,
            f"refused: {found}; above the bar: {' and '.join(over)}. The worst was a {worst.kind} step, "
            f"predicted {worst.predicted_s * 1e3:.2f} ms and measured {worst.measured_s * 1e3:.2f} ms",
        )
    return Gate(True, found)
