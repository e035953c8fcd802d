"""Operations that say which kind a request is, or bring another kind: classes by length or priority, merging."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.traffic import described
from planner.traffic.columns import MAX_CLASSES
from planner.traffic.errors import refuse
from planner.traffic.model import MAX_TOKENS, Finding, PrefixHashes, Traffic
from planner.traffic.shaping import prefixes
from planner.traffic.shaping.arrays import both_hashes, together
from planner.traffic.shaping.context import Context

BY = (
    ("prompt", "prompt length"),
    ("output", "output length"),
    ("total", "prompt and output together"),
    ("priority", "the priority that the file gave"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classify:
    """Class k holds lengths above limit k - 1 and up to limit k; the last holds what is above all limits."""

    TITLE: ClassVar = "Split into classes"
    ABOUT: ClassVar = (
        "Give every request a class by its length or by its priority, so that each kind can have objectives, be "
        "filtered and be looked at by itself. No request changes."
    )

    by: str = described.choice("By", BY, default="prompt")
    limits_tokens: tuple[int, ...] | None = described.numbers(
        "Limits", "tokens", default=None, low=1, high=2 * MAX_TOKENS,
        help="Rising, separated by commas; a limit belongs to the class below it.",
    )  # fmt: skip
    names: tuple[str, ...] | None = described.names(
        "Names", default=None, help="One more than limits, separated by commas. Empty: from the limits."
    )
    combine: bool = described.yes("Refine the classes that are there, instead of replacing them")

    def sentence(self) -> str:
        what = dict(BY)[self.by]
        if self.limits_tokens is None:
            return f"Split into classes by {what}"
        return f"Split into classes by {what} at {', '.join(f'{limit:,}' for limit in self.limits_tokens)} tokens"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        codes, names = self._by_priority(traffic) if self.by == "priority" else self._by_length(traffic)
        if self.combine and traffic.request_class is not None:
            pairs = traffic.request_class.astype(np.int64) * len(names) + codes
            there, codes = np.unique(pairs, return_inverse=True)
            names = [
                f"{traffic.class_names[pair // len(names)]} / {names[pair % len(names)]}"
                for pair in there.tolist()
            ]
        if len(names) > MAX_CLASSES:
            raise refuse(f"More than {MAX_CLASSES:,} classes.", code="option", field="by")
        return replace(traffic, request_class=codes.astype(np.int16), class_names=tuple(names))

    def _by_priority(self, traffic: Traffic) -> tuple[NDArray[Any], list[str]]:
        if self.limits_tokens is not None or self.names is not None:
            field = "limits_tokens" if self.limits_tokens is not None else "names"
            raise refuse("Limits and names are for classes by length.", code="option", field=field)
        if traffic.priority is None:
            raise refuse("The requests of this traffic have no priority.", code="option", field="by")
        values, codes = np.unique(traffic.priority, return_inverse=True)
        return codes, [f"priority {value}" for value in values.tolist()]

    def _by_length(self, traffic: Traffic) -> tuple[NDArray[Any], list[str]]:
        limits = self.limits_tokens
        if limits is None:
            raise refuse("Say where to split.", code="option", field="limits_tokens")
        if any(b <= a for a, b in pairwise(limits)):
            raise refuse("The limits must rise.", code="option", field="limits_tokens")
        if self.names is not None and (
            len(self.names) != len(limits) + 1 or len(set(self.names)) < len(self.names)
        ):
            message = f"There are {len(limits) + 1} classes: give as many different names."
            raise refuse(message, code="option", field="names")
        tokens = {
            "prompt": traffic.prompt_tokens,
            "output": traffic.output_tokens,
            "total": traffic.prompt_tokens + traffic.output_tokens,
        }[self.by]
        codes = np.searchsorted(np.array(limits), tokens, side="left")
        if self.names is not None:
            return codes, list(self.names)
        starts = ["", *(f"{limit + 1:,} to " for limit in limits[:-1])]
        named = [f"{self.by} {start or 'up to '}{end:,}" for start, end in zip(starts, limits, strict=True)]
        return codes, [*named, f"{self.by} above {limits[-1]:,}"]


SHARING = (
    ("apart", "no prompt of one is found in the other"),
    ("shared", "equal hash_ids mean equal prompts in both"),
    ("drop", "forget what is known of shared prompts"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Both traffics at the same time: the rates add up."""

    TITLE: ClassVar = "Merge with another"
    ABOUT: ClassVar = "Play another traffic at the same time: the rates add up, the longer one goes on alone."

    traffic: str = described.traffic("Other traffic")
    offset_s: float = described.number(
        "Starts after", "s", default=0.0, low=0, high=3.2e8, help="Since the first request of this one."
    )
    prefixes: str = described.choice(
        "Shared prompts",
        SHARING,
        default="apart",
        help="hash_ids of two files mean the same only by agreement.",
    )
    own_class: str | None = described.text(
        "Class of these",
        default=None,
        help="For requests without one. Empty: no classes, unless the other has.",
    )
    its_class: str | None = described.text("Class of the other's", default=None)

    def sentence(self) -> str:
        later = f", {self.offset_s:,.6g} s later" if self.offset_s else ""
        return f"Merge with another traffic{later}"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        other = context.traffic(self.traffic)
        if self.own_class or self.its_class or traffic.class_names or other.class_names:
            traffic = _classed(traffic, self.own_class or traffic.source)
            other = _classed(other, self.its_class or other.source)
        theirs = self._hashes(traffic, other, context)
        if self.prefixes == "drop":
            traffic = replace(traffic, prefix_hashes=None)
        merged = together(
            traffic, other, both_hashes(traffic, theirs, other.requests), other.arrival_s + self.offset_s
        )
        if (traffic.prefix_hashes is None) != (theirs is None):
            message = (
                "Only one of the merged traffics says which prompts begin alike; the other's share nothing."
            )
            return merged.with_warnings(Finding("merged_prefixes", message, merged.requests))
        return merged

    def _hashes(self, traffic: Traffic, other: Traffic, context: Context) -> PrefixHashes | None:
        mine, theirs = traffic.prefix_hashes, other.prefix_hashes
        if self.prefixes == "drop" or theirs is None:
            return None
        if mine is not None and mine.block_tokens != theirs.block_tokens:
            message = (
                f"The blocks of one have {mine.block_tokens} tokens, of the other {theirs.block_tokens}: they cannot "
                "be in one traffic. Forget what is known of shared prompts, or merge another."
            )
            raise refuse(message, code="option", field="prefixes")
        return theirs if self.prefixes == "shared" else prefixes.apart(theirs, context.salt)


def _classed(traffic: Traffic, name: str) -> Traffic:
    if traffic.request_class is not None:
        return traffic
    return replace(traffic, request_class=np.zeros(traffic.requests, np.int16), class_names=(name[:120],))
