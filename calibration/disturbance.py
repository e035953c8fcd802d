"""Whether the device stayed as it was while a calibration was measured, as its own check steps say.

Two fixed steps stand between the points of a run (`experiment.running`): where their last third took longer or shorter
than their first, the points before and after were measured on what amounts to two devices. Shuffled passes spread that
over all points alike, so held-out errors may stay small and the gate passes: the step times are then a mixture that the
device at rest need not show again. A drift check calls such a difference a reason to measure anew; here it is said
beside the result. Nothing is rescaled by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from calibration.steptime.report import DeviceKind, device_kind

#: Logarithm of a check step's last third over its first from which on it is told.
DRIFT_TOLD: dict[DeviceKind, float] = {"cpu": 0.07, "gpu": 0.03}


def disturbances(environment: Mapping[str, Any] | None, device: str) -> tuple[str, ...]:
    """Sentences about a run, from its record; none of one that was not disturbed, or that says nothing of it (imports
    of step tables). The record may be anybody's: what is no number in it is passed over."""
    worst = max(_drifts(environment or {}), key=abs, default=0.0)
    bar = DRIFT_TOLD[device_kind(device)]
    if abs(worst) <= bar:
        return ()
    moved = f"{abs(math.expm1(worst)):.1%} {'longer' if worst > 0 else 'shorter'}"
    return (
        f"The device was disturbed while it was measured: check steps took {moved} at the end of the run "
        f"than at its beginning (up to {bar:.0%} is usual). Something else used the device, or its clock "
        "changed: measure again when it is left alone.",
    )


def _drifts(environment: Mapping[str, Any]) -> Iterator[float]:
    """Of the run, and of its second attempt where there was one."""
    for attempt in ("observed", "observed_retry"):
        observed = environment.get(attempt)
        drifts = observed.get("sentinel_drift") if isinstance(observed, Mapping) else None
        for drift in drifts if isinstance(drifts, list) else ():
            # Beyond a factor of e^20 it is no measurement.
            if isinstance(drift, (int, float)) and not isinstance(drift, bool) and abs(drift) < 20:
                yield float(drift)
