"""Arrival processes as described dataclasses. Each draws times from 0, so many or all within a duration.

Poisson and Gamma gaps are those of planner/traffic/arrivals.py. **On and off**: a Poisson process whose rate jumps
between two values, staying exponential times in each (a Markov-modulated Poisson process; with nothing in the off
state Kuczura's interrupted Poisson process, 1973); bursts last for seconds or minutes, and the index of dispersion
rises with the window to 1 + 2 p (1 - p) (a - b)^2 / (m (1/on + 1/off)), p the share of time that is on, m the mean
rate. **Day and night**: gaps with a CV, in a time that runs faster by day: an inhomogeneous renewal process by time
rescaling. **Replayed counts**: another traffic's arrivals per interval, at random places inside each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import pi
from typing import ClassVar

import numpy as np

from planner.traffic import described
from planner.traffic.arrivals import MAX_REQUESTS, arrival_times_s
from planner.traffic.curves import arrivals_per_bin
from planner.traffic.errors import refuse
from planner.traffic.model import Floats
from planner.traffic.source import Source

RATE = {"low": 1e-6, "high": 1e6}
MOST_PASSES = 5_000  # of 1,000 spells each
MOST_REPLAYED_BINS = 50_000_000  # in all passes: some tenths of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    TITLE: ClassVar = "Poisson"
    ABOUT: ClassVar = "Independent clients: exponential gaps, CV and index of dispersion 1 on every scale."

    rate_per_s: float = described.number("Mean rate", "requests/s", **RATE)

    def mean_rate_per_s(self, source: Source) -> float:
        return self.rate_per_s

    def draw(self, source: Source, requests: int | None, duration_s: float | None) -> Floats:
        return arrival_times_s(self.rate_per_s, requests=requests, duration_s=duration_s, rng=source.rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    TITLE: ClassVar = "Gamma gaps"
    ABOUT: ClassVar = (
        "Independent gaps with a CV: above 1 they come in clumps, below 1 evenly, at 0 on a clock."
    )

    rate_per_s: float = described.number("Mean rate", "requests/s", **RATE)
    cv: float = described.number("CV of the gaps", "", low=0, high=100)

    def mean_rate_per_s(self, source: Source) -> float:
        return self.rate_per_s

    def draw(self, source: Source, requests: int | None, duration_s: float | None) -> Floats:
        return arrival_times_s(
            self.rate_per_s, requests=requests, duration_s=duration_s, interarrival_cv=self.cv, rng=source.rng
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    TITLE: ClassVar = "On and off"
    ABOUT: ClassVar = (
        "Busy and quiet spells of random lengths, Poisson arrivals inside each: bursts that last."
    )

    on_rate_per_s: float = described.number("Rate while busy", "requests/s", **RATE)
    off_rate_per_s: float = described.number("Rate while quiet", "requests/s", default=0.0, low=0, high=1e6)
    mean_on_s: float = described.number("Busy spells last", "s on average", low=1e-3, high=1e7)
    mean_off_s: float = described.number("Quiet spells last", "s on average", low=1e-3, high=1e7)

    def mean_rate_per_s(self, source: Source) -> float:
        total = self.on_rate_per_s * self.mean_on_s + self.off_rate_per_s * self.mean_off_s
        return total / (self.mean_on_s + self.mean_off_s)

    def draw(self, source: Source, requests: int | None, duration_s: float | None) -> Floats:
        pass_s = 500 * (self.mean_on_s + self.mean_off_s)
        needed_s = duration_s if requests is None else requests / self.mean_rate_per_s(source)
        if needed_s is not None and needed_s / pass_s > MOST_PASSES:
            message = f"This takes more than {1000 * MOST_PASSES:,} spells: longer spells, or fewer requests."
            raise refuse(message, code="option", field="mean_on_s")
        rng = source.rng
        is_on = rng.random() < self.mean_on_s / (self.mean_on_s + self.mean_off_s)
        means = (self.mean_on_s, self.mean_off_s) if is_on else (self.mean_off_s, self.mean_on_s)
        rates = (self.on_rate_per_s, self.off_rate_per_s)
        rates = rates if is_on else rates[::-1]
        found: list[Floats] = []
        start_s, count = 0.0, 0
        while (requests is not None and count < requests) or (
            duration_s is not None and start_s <= duration_s
        ):
            spells_s = rng.exponential(1.0, 1_000) * np.tile(means, 500)
            starts_s = start_s + np.cumsum(spells_s) - spells_s
            counts = rng.poisson(np.minimum(np.tile(rates, 500) * spells_s, 1e9))
            if requests is None and duration_s is not None:
                counts = np.where(starts_s <= duration_s, counts, 0)
            else:
                enough = int(np.searchsorted(np.cumsum(counts), requests or 0))
                counts[enough + 1 :] = 0
            if count + int(counts.sum()) > 4 * MAX_REQUESTS:
                raise _too_many()
            times_s = np.repeat(starts_s, counts) + rng.random(int(counts.sum())) * np.repeat(
                spells_s, counts
            )
            found.append(np.sort(times_s))
            count += len(times_s)
            start_s = float(starts_s[-1] + spells_s[-1])
        return _cut(np.concatenate(found), requests, duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    TITLE: ClassVar = "Day and night"
    ABOUT: ClassVar = "The rate swings as a cosine around its mean; gaps have a CV on top of that."

    rate_per_s: float = described.number("Mean rate", "requests/s", **RATE)
    swing: float = described.number(
        "Swing", "of the mean", default=0.5, low=0, high=1, help="1: down to nothing."
    )
    period_s: float = described.number("Period", "s", default=86_400.0, low=1, high=3.2e7)
    peak_s: float = described.number(
        "Peak at", "s", default=0.0, low=0, high=3.2e7, help="After the beginning."
    )
    cv: float = described.number("CV of the gaps", "", default=1.0, above=0, high=100)

    def mean_rate_per_s(self, source: Source) -> float:
        return self.rate_per_s

    def draw(self, source: Source, requests: int | None, duration_s: float | None) -> Floats:
        """Renewal times of mean 1 are carried through the inverse of the expected count up to a time."""
        phase = np.linspace(0, 1, 20_001)
        angle = 2 * pi * self.peak_s / self.period_s
        expected = phase + self.swing / (2 * pi) * (np.sin(2 * pi * phase - angle) + np.sin(angle))
        per_period = self.rate_per_s * self.period_s
        most = None if duration_s is None else (duration_s / self.period_s + 1) * per_period
        if most is not None and most > 4 * MAX_REQUESTS:
            raise _too_many()
        clock = arrival_times_s(
            1.0, requests=requests, duration_s=most, interarrival_cv=self.cv, rng=source.rng
        )
        whole, part = np.divmod(clock / per_period, 1.0)
        return _cut((whole + np.interp(part, expected, phase)) * self.period_s, requests, duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    TITLE: ClassVar = "Replayed counts"
    ABOUT: ClassVar = (
        "As many arrivals per interval as another traffic has, at random places inside each; then again."
    )

    traffic: str = described.traffic("Counts of")
    bin_s: float = described.number("Interval", "s", default=60.0, low=1e-3, high=1e7)
    scale: float = described.number(
        "Times", "", default=1.0, above=0, high=1e6, help="Counts are multiplied by it."
    )

    def mean_rate_per_s(self, source: Source) -> float:
        return (source.traffic(self.traffic).rate_per_s or 0.0) * self.scale

    def draw(self, source: Source, requests: int | None, duration_s: float | None) -> Floats:
        rng = source.rng
        other = source.traffic(self.traffic)
        counts = arrivals_per_bin(other.arrival_s, self.bin_s)
        wanted: Floats = counts.count.astype(np.float64) * self.scale
        if wanted.sum() < 1e-3:
            raise refuse("Nothing would be left of the counts.", code="option", field="scale")
        self._check_passes(wanted, other.duration_s, requests, duration_s)
        found: list[Floats] = []
        start_s, count = 0.0, 0
        # A pass ends where the other traffic does, one mean gap after its last request.
        gap_s = other.duration_s / (other.requests - 1) if other.duration_s else counts.width_s
        pass_s = other.duration_s + gap_s
        while not found or (requests is not None and count < requests) or (
            duration_s is not None and start_s <= duration_s
        ):  # fmt: skip
            whole = np.floor(wanted).astype(np.int64)
            whole += rng.random(len(wanted)) < wanted - whole
            if count + int(whole.sum()) > 4 * MAX_REQUESTS:
                raise _too_many()
            widths_s = np.minimum(counts.width_s, pass_s - counts.start_s)
            times_s = np.repeat(counts.start_s, whole) + rng.random(int(whole.sum())) * np.repeat(
                widths_s, whole
            )
            found.append(np.sort(times_s) + start_s)
            count += len(times_s)
            start_s += pass_s
        return _cut(np.concatenate(found), requests, duration_s)

    def _check_passes(
        self, wanted: Floats, other_s: float, requests: int | None, duration_s: float | None
    ) -> None:
        """Each pass over the other traffic costs the same, however little is left of it."""
        per_pass = float(wanted.sum())
        passes = (
            requests / per_pass if requests is not None else (duration_s or 0.0) / max(other_s, self.bin_s)
        )
        most = min(5 * MOST_PASSES, MOST_REPLAYED_BINS // len(wanted))
        if passes > most:
            message = (
                f"At this scale one pass of the other traffic has {per_pass:.3g} requests: this takes {passes:,.0f} "
                f"passes, more than {most:,}. Give a larger scale, or ask for less."
            )
            raise refuse(message, code="option", field="scale" if requests is not None else "duration_s")


def starts(arrivals: Arrivals, per_start: float, warm_up_s: float) -> Arrivals:
    """The process of sessions' beginnings where each has `per_start` requests, begun `warm_up_s` before time 0."""
    match arrivals:
        case OnOff():
            return replace(
                arrivals,
                on_rate_per_s=arrivals.on_rate_per_s / per_start,
                off_rate_per_s=arrivals.off_rate_per_s / per_start,
            )
        case Replayed():
            return replace(arrivals, scale=arrivals.scale / per_start)
        case Diurnal():
            peak_s = (arrivals.peak_s + warm_up_s) % arrivals.period_s
            return replace(arrivals, rate_per_s=arrivals.rate_per_s / per_start, peak_s=peak_s)
        case _:
            return replace(arrivals, rate_per_s=arrivals.rate_per_s / per_start)


Arrivals = Poisson | Gamma | OnOff | Diurnal | Replayed
ARRIVALS: dict[str, type[Arrivals]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "on_off": OnOff,
    "diurnal": Diurnal,
    "replayed": Replayed,
}


def _too_many() -> Exception:
    return refuse(f"More than {MAX_REQUESTS:,} requests.", code="option", field="requests")


def _cut(times_s: Floats, requests: int | None, duration_s: float | None) -> Floats:
    """From the first one on; so many, or all within the duration."""
    if not len(times_s):
        raise refuse("No request comes in this time.", code="empty", field="duration_s")
    times_s = times_s - times_s[0]
    kept = times_s[:requests] if requests is not None else times_s[times_s <= (duration_s or times_s[-1])]
    if len(kept) > MAX_REQUESTS:
        raise _too_many()
    return kept
