"""Operations on arrivals: other speed, again and again, bursts on top, off the grid of a coarse clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from planner.traffic import described
from planner.traffic.arrivals import MAX_REQUESTS
from planner.traffic.errors import refuse
from planner.traffic.grids import spread_grid
from planner.traffic.model import MAX_DURATION_S, Finding, Floats, PrefixHashes, Traffic
from planner.traffic.shaping import prefixes
from planner.traffic.shaping.arrays import both_hashes, mean_gap_s, take, together
from planner.traffic.shaping.context import Context

PREFIXES = (("apart", "each copy has prompts of its own"), ("same", "every copy asks the same prompts"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressTime:
    """All times divided by a factor: every request stays, and every gap shrinks alike, so the CV of the gaps stays;
    what happened over a minute happens over less."""

    TITLE: ClassVar = "Compress the time"
    ABOUT: ClassVar = (
        "Play it faster (factor above 1) or slower: every request stays, all gaps change alike. The same clients, "
        "each asking more often; the CV stays, bursts get as much denser as the rest."
    )

    factor: float | None = described.number(
        "Factor", "times as fast", default=None, above=0, high=1e6, either=True, help="Either this or a rate."
    )
    rate_per_s: float | None = described.number(
        "Or mean rate", "requests/s", default=None, either=True, above=0, high=1e9
    )

    def sentence(self) -> str:
        if self.factor is not None:
            return f"Compress the time by {self.factor:,.6g}"
        return f"Compress the time to {self.rate_per_s or 0:,.6g} requests/s"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        factor = self.factor
        if (factor is None) == (self.rate_per_s is None):
            raise refuse("Give either a factor or a rate.", code="option", field="factor")
        if factor is None:
            if traffic.rate_per_s is None:
                message = "All requests come at one instant: there is no rate."
                raise refuse(message, code="option", field="rate_per_s")
            factor = (self.rate_per_s or 0.0) / traffic.rate_per_s
        if traffic.duration_s / factor > MAX_DURATION_S:
            raise refuse("It would last more than ten years.", code="option", field="factor")
        return replace(traffic, arrival_s=traffic.arrival_s / factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """So many copies one after another. The next begins one mean gap after the last request of the one before."""

    TITLE: ClassVar = "Repeat"
    ABOUT: ClassVar = (
        "Play it several times, one after another: a longer test with the same rate and lengths."
    )

    times: int = described.whole("Times", "in all", default=2, low=2, high=10_000)
    gap_s: float | None = described.number(
        "Gap between copies", "s", default=None, low=0, help="Empty: the mean gap between requests."
    )
    prefixes: str = described.choice(
        "Shared prompts", PREFIXES, default="apart", help="Matters only for a prefix cache."
    )

    def sentence(self) -> str:
        return f"Repeat {self.times:,} times" + (
            ", the same prompts again" if self.prefixes == "same" else ""
        )

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        if traffic.requests * self.times > MAX_REQUESTS:
            message = f"{traffic.requests * self.times:,} requests are more than {MAX_REQUESTS:,}."
            raise refuse(message, code="option", field="times")
        gap_s = self.gap_s if self.gap_s is not None else mean_gap_s(traffic)
        if gap_s is None:
            message = "All requests come at one instant: say how long it is until the next copy."
            raise refuse(message, code="option", field="gap_s")
        starts_s = np.repeat(np.arange(self.times) * (traffic.duration_s + gap_s), traffic.requests)
        chosen = np.tile(np.arange(traffic.requests), self.times)
        # Without a gap the end of one copy is the start of the next, up to the last bit: none may come before.
        times_s = np.maximum.accumulate(np.tile(traffic.arrival_s, self.times) + starts_s)
        copied = take(traffic, chosen, "times", times_s)
        hashes = traffic.prefix_hashes
        if hashes is None or self.prefixes == "same":
            return copied
        copies: list[PrefixHashes | None] = [hashes]
        copies += [prefixes.apart(hashes, context.salt + number) for number in range(1, self.times)]
        apart = prefixes.joined(copies, [traffic.requests] * self.times, hashes.block_tokens)
        return replace(copied, prefix_hashes=apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBursts:
    """Extra requests, drawn from those that are there, crowded into a few moments."""

    TITLE: ClassVar = "Add bursts"
    ABOUT: ClassVar = (
        "Extra requests on top, crowded into moments: lengths and classes are drawn from the requests that are there, "
        "shared beginnings of prompts stay shared. Drawn with the seed."
    )

    bursts: int = described.whole("Bursts", "in all", low=1, high=100_000)
    requests: int = described.whole("Each of", "requests", low=1, high=1_000_000)
    length_s: float = described.number(
        "Spread over", "s", default=1.0, low=0, high=86_400, help="0: all at one instant."
    )
    placed: str = described.choice(
        "When", (("random", "at random times"), ("even", "at even distances")), default="random"
    )

    def sentence(self) -> str:
        return (
            f"Add {self.bursts:,} bursts of {self.requests:,} requests within {self.length_s:,.6g} s, at "
            f"{'even distances' if self.placed == 'even' else 'random times'}"
        )

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        count = self.bursts * self.requests
        if traffic.requests + count > MAX_REQUESTS:
            message = f"{traffic.requests + count:,} requests are more than {MAX_REQUESTS:,}."
            raise refuse(message, code="option", field="bursts")
        latest_s = max(0.0, traffic.duration_s - self.length_s)
        if self.placed == "even":
            starts_s = (np.arange(self.bursts) + 0.5) / self.bursts * latest_s
        else:
            starts_s = context.rng.uniform(0, latest_s, self.bursts)
        times_s: Floats = np.repeat(starts_s, self.requests) + context.rng.uniform(0, self.length_s, count)
        order = np.argsort(times_s, kind="stable")
        drawn = context.rng.integers(0, traffic.requests, count)
        extra = take(traffic, drawn, "requests", times_s[order])
        own = traffic.prefix_hashes
        theirs = None
        if own is not None:
            theirs = prefixes.unshared_renewed(own.take(drawn), own, context.salt)
        hashes = both_hashes(traffic, theirs, count)
        return together(traffic, extra, hashes, times_s[order])


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadGrid:
    """planner/traffic/grids.py"""

    TITLE: ClassVar = "Take off the grid"
    ABOUT: ClassVar = (
        "Requests on one stamp, because the recording's clock was coarse, are spread evenly over its tick."
    )

    def sentence(self) -> str:
        return "Spread requests that share a stamp over the tick of the clock"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        spread = spread_grid(traffic)
        if spread is traffic:
            finding = Finding("no_grid", "No two requests share a stamp: there was no grid to take them off.")
            return traffic.with_warnings(finding)
        return replace(
            spread, warnings=tuple(one for one in spread.warnings if not one.code.endswith("time_grid"))
        )
