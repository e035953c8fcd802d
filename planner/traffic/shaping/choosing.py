"""Operations that leave requests out: a window of time, thinning, a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from planner.traffic import described
from planner.traffic.errors import refuse
from planner.traffic.model import MAX_TOKENS, Finding, Traffic
from planner.traffic.shaping.arrays import take
from planner.traffic.shaping.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Requests that arrive in [from_s, to_s), on the clock of the traffic it is applied to."""

    TITLE: ClassVar = "Cut out a window"
    ABOUT: ClassVar = (
        "Keep the requests from one time on until just before another; the first kept one is at 0."
    )

    from_s: float = described.number("From", "s", default=0.0, low=0, help="Since the first request.")
    to_s: float | None = described.number(
        "To", "s", default=None, above=0, help="Not included. Empty: to the end."
    )

    def sentence(self) -> str:
        end = "the end" if self.to_s is None else f"{self.to_s:,.10g} s"
        return f"Cut out the window from {self.from_s:,.10g} s to {end}"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        if self.to_s is not None and self.to_s <= self.from_s:
            raise refuse("The window must end after it begins.", code="option", field="to_s")
        first = int(np.searchsorted(traffic.arrival_s, self.from_s))
        last = traffic.requests if self.to_s is None else int(np.searchsorted(traffic.arrival_s, self.to_s))
        if last <= first:
            message = f"No request arrives then; the traffic lasts {traffic.duration_s:,.6g} s."
            raise refuse(message, code="empty", field="from_s")
        return take(traffic, np.arange(first, last), "from_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thin:
    """Independent thinning: each request is kept with one probability. Poisson traffic stays Poisson; bursts thin
    out towards it (index of dispersion minus 1 shrinks by the share)."""

    TITLE: ClassVar = "Thin"
    ABOUT: ClassVar = (
        "Keep each request with the same chance: fewer clients. The traffic lasts as long as before and "
        "its bursts get milder. Drawn with the seed."
    )

    share: float | None = described.number(
        "Share to keep", "of 1", default=None, above=0, high=1, either=True, help="Either this or a rate."
    )
    rate_per_s: float | None = described.number(
        "Or mean rate", "requests/s", default=None, either=True, above=0, help="At most what it has now."
    )

    def sentence(self) -> str:
        if self.share is not None:
            return f"Thin to {self.share * 100:,.6g} % of the requests, at random"
        return f"Thin to {self.rate_per_s or 0:,.6g} requests/s, at random"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        share = self.share
        if (share is None) == (self.rate_per_s is None):
            raise refuse("Give either a share or a rate.", code="option", field="share")
        if share is None:
            share = _share_of_rate(traffic, self.rate_per_s or 0.0)
        kept = np.flatnonzero(context.rng.random(traffic.requests) < share)
        thinned = take(traffic, kept, "share")
        if traffic.prefix_hashes is None:
            return thinned
        message = (
            "Thinning took requests out of conversations: less of the prompts is found in a prefix cache."
        )
        return thinned.with_warnings(Finding("thinned_prefixes", message, traffic.requests - len(kept)))


def _share_of_rate(traffic: Traffic, rate_per_s: float) -> float:
    rate = traffic.rate_per_s
    if rate is None:
        raise refuse("All requests come at one instant: there is no rate.", code="option", field="rate_per_s")
    if rate_per_s > rate:
        message = (
            f"Thinning cannot raise the rate, which is {rate:,.6g}/s: compress the time, repeat or merge."
        )
        raise refuse(message, code="option", field="rate_per_s")
    return rate_per_s / rate


def _limit(label: str, end: str, **about: float) -> int | None:
    help = "Included. Empty: no limit."
    found: int | None = described.whole(f"{label}, {end}", "tokens", default=None, help=help, **about)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Requests that meet every condition that is given; with `leave_out`, those that do not."""

    TITLE: ClassVar = "Filter"
    ABOUT: ClassVar = "Keep the requests that meet all conditions given: lengths, classes, time."

    prompt_min_tokens: int | None = _limit("Prompt", "at least", low=1, high=MAX_TOKENS)
    prompt_max_tokens: int | None = _limit("Prompt", "at most", low=1, high=MAX_TOKENS)
    output_min_tokens: int | None = _limit("Output", "at least", low=1, high=MAX_TOKENS)
    output_max_tokens: int | None = _limit("Output", "at most", low=1, high=MAX_TOKENS)
    total_min_tokens: int | None = _limit("Both together", "at least", low=2, high=2 * MAX_TOKENS)
    total_max_tokens: int | None = _limit("Both together", "at most", low=2, high=2 * MAX_TOKENS)
    classes: tuple[str, ...] | None = described.names(
        "Classes", default=None, help="Names, separated by commas. Empty: all."
    )
    from_s: float | None = described.number("From", "s", default=None, low=0, help="Since the first request.")
    to_s: float | None = described.number("To", "s", default=None, above=0, help="Not included.")
    leave_out: bool = described.yes("Leave out what meets the conditions, instead of keeping it")

    def sentence(self) -> str:
        said = [
            f"{label} {self._range(low, high)}"
            for label, low, high in (
                ("prompt", self.prompt_min_tokens, self.prompt_max_tokens),
                ("output", self.output_min_tokens, self.output_max_tokens),
                ("prompt and output", self.total_min_tokens, self.total_max_tokens),
            )
            if low is not None or high is not None
        ]
        if self.classes is not None:
            said.append(f"class {' or '.join(self.classes)}")
        if self.from_s is not None or self.to_s is not None:
            end = "the end" if self.to_s is None else f"{self.to_s:,.10g} s"
            said.append(f"arrival from {self.from_s or 0:,.10g} s to {end}")
        return f"{'Leave out' if self.leave_out else 'Keep only'} requests with {', '.join(said) or 'no condition'}"

    @staticmethod
    def _range(low: int | None, high: int | None) -> str:
        if low is None:
            return f"of at most {high:,} tokens"
        return f"of at least {low:,} tokens" if high is None else f"of {low:,} to {high:,} tokens"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        meets = np.ones(traffic.requests, dtype=bool)
        lengths = (
            ("prompt", traffic.prompt_tokens),
            ("output", traffic.output_tokens),
            ("total", traffic.prompt_tokens + traffic.output_tokens),
        )
        for name, tokens in lengths:
            low, high = getattr(self, f"{name}_min_tokens"), getattr(self, f"{name}_max_tokens")
            if low is not None and high is not None and high < low:
                message = "This is below the least that is kept."
                raise refuse(message, code="option", field=f"{name}_max_tokens")
            meets &= (tokens >= (low or 0)) & (tokens <= (2 * MAX_TOKENS if high is None else high))
        if self.classes is not None:
            meets &= self._of_classes(traffic, self.classes)
        meets &= traffic.arrival_s >= (self.from_s or 0.0)
        if self.to_s is not None:
            meets &= traffic.arrival_s < self.to_s
        if self == Filter(leave_out=self.leave_out):
            message = "Give at least one condition."
            raise refuse(message, code="option", field="prompt_min_tokens")
        return take(traffic, np.flatnonzero(meets ^ self.leave_out), "prompt_min_tokens")

    def _of_classes(
        self, traffic: Traffic, wanted: tuple[str, ...]
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        names = traffic.class_names if traffic.request_class is not None else ()
        missing = [name for name in wanted if name not in names]
        if missing or traffic.request_class is None:
            known = ", ".join(names[:20]) or "no classes"
            message = f"There is no class {missing[0] if missing else wanted[0]!r} here; there are: {known}."
            raise refuse(message, code="option", field="classes")
        codes = [names.index(name) for name in wanted]
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.isin(traffic.request_class, codes)
        return found
