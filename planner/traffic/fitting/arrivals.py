"""Arrival processes fitted to a traffic's arrivals.

Poisson and Gamma take the rate and the CV of the gaps. **On and off**: an interrupted Poisson process is a renewal
process with hyperexponential gaps (Kuczura 1973), so its CV^2 - 1 is A = 2 (1 - p) rate_on / s, with the share p of
time that is on and s = 1/on + 1/off. The mean rate fixes rate_on p, the CV fixes A; what is left, p, is where the
law's gaps (Kolmogorov-Smirnov) and its index of dispersion over all windows (root mean square of logarithms) together
come nearest.
"""

from __future__ import annotations

import numpy as np

from planner.traffic.curves import dispersion_curve, interarrival_cv
from planner.traffic.generating.arrivals import Arrivals, Diurnal, Gamma, OnOff, Poisson, Replayed
from planner.traffic.model import Floats, Traffic

DAY_S = 86_400.0
MAX_GAPS = 50_000


def fitted_arrivals(traffic: Traffic, key: str) -> dict[str, Arrivals]:
    """By kind, those that make sense for this traffic; `key` is its id, for replaying. Empty without a rate."""
    rate, cv = traffic.rate_per_s, interarrival_cv(traffic.arrival_s)
    if rate is None or cv is None:
        return {}
    found: dict[str, Arrivals] = {
        "poisson": Poisson(rate_per_s=short(rate)),
        "gamma": Gamma(rate_per_s=short(rate), cv=min(100.0, short(cv))),
    }
    on_off = _interrupted(traffic.arrival_s, rate, cv)
    if on_off is not None:
        found["on_off"] = on_off
    if traffic.duration_s >= 1.5 * DAY_S:
        found["diurnal"] = _daily(traffic.arrival_s, rate, cv)
    found["replayed"] = Replayed(traffic=key, bin_s=_bin_s(traffic))
    return found


def _interrupted(arrival_s: Floats, rate: float, cv: float) -> OnOff | None:
    """None where the gaps vary no more than Poisson's."""
    excess = cv**2 - 1
    if excess < 0.05:
        return None
    gaps_s = np.sort(np.diff(arrival_s)[:: -(-(len(arrival_s) - 1) // MAX_GAPS)])
    share_s = np.arange(1, len(gaps_s) + 1) / len(gaps_s)
    widths_s, index = dispersion_curve(arrival_s)
    known = np.isfinite(index) & (index > 0)
    best: tuple[float, OnOff] | None = None
    for on_share in np.geomspace(1e-3, 0.98, 120).tolist():
        on_rate = rate / on_share
        speed = 2 * (1 - on_share) * on_rate / excess
        leave_on, leave_off = speed * (1 - on_share), speed * on_share
        law = _gap_law(gaps_s, on_rate, leave_on, leave_off)
        distance = float(np.abs(law - share_s).max())
        st = speed * widths_s[known]
        dispersion = 1 + excess * (1 + np.expm1(-st) / st)
        apart = float(np.sqrt(np.mean(np.log(dispersion / index[known]) ** 2))) if known.any() else 0.0
        if best is None or distance + apart < best[0]:
            process = OnOff(
                on_rate_per_s=short(on_rate),
                mean_on_s=short(1 / leave_on),
                mean_off_s=short(1 / leave_off),
            )
            best = (distance + apart, process)
    return best[1] if best is not None else None


def _gap_law(gaps_s: Floats, rate: float, leave_on: float, leave_off: float) -> Floats:
    """The distribution of an interrupted Poisson process's gaps: two exponentials."""
    total = rate + leave_on + leave_off
    root = np.sqrt(max(0.0, total**2 - 4 * rate * leave_off))
    fast, slow = (total + root) / 2, (total - root) / 2
    weight = (rate - slow) / (fast - slow) if fast > slow else 1.0
    law: Floats = -weight * np.expm1(-fast * gaps_s) - (1 - weight) * np.expm1(-slow * gaps_s)
    return law


def _daily(arrival_s: Floats, rate: float, cv: float) -> Diurnal:
    """The first harmonic of the day over whole days."""
    whole = arrival_s[arrival_s < max(1, arrival_s[-1] // DAY_S) * DAY_S]
    harmonic = np.exp(2j * np.pi * whole / DAY_S).mean()
    peak_s = float(np.angle(harmonic) / (2 * np.pi) % 1 * DAY_S)
    swing = float(min(1.0, 2 * abs(harmonic)))
    return Diurnal(
        rate_per_s=short(rate),
        swing=short(swing),
        peak_s=short(peak_s),
        cv=min(100.0, short(max(cv, 0.01))),
    )


def _bin_s(traffic: Traffic) -> float:
    """Of 1, 2, 5 x a power of ten: the nearest above a hundredth of the traffic, at most a minute."""
    least = min(60.0, max(traffic.duration_s / 100, 1e-3))
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * m for m in (1, 2, 5, 10) if power * m >= least * 0.999))


def short(value: float) -> float:
    """Six digits: a fit knows no more, and a page shows no more."""
    return float(f"{value:.6g}")
