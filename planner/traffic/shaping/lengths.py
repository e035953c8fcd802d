"""Operations on lengths: scale, clip, add. Whole tokens by rounding half to even, and never below one.

The client's cap on the output (max_tokens) changes as outputs do, so an output below its cap stays below it. Prompts
that change keep the prefix hashes of the blocks whose text is as it was (prefixes.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from planner.traffic import described
from planner.traffic.errors import refuse
from planner.traffic.model import MAX_TOKENS, Finding, Floats, Integers, Traffic
from planner.traffic.shaping import prefixes
from planner.traffic.shaping.context import Context

OF = (("prompt", "prompts"), ("output", "outputs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleLengths:
    TITLE: ClassVar = "Scale lengths"
    ABOUT: ClassVar = "Multiply every prompt or every output; rounded half to even, at least one token."

    of: str = described.choice("Which", OF, default="prompt")
    factor: float = described.number("Factor", "times as long", above=0, high=1e6)

    def sentence(self) -> str:
        return f"Make {dict(OF)[self.of]} {self.factor:,.6g} times as long"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        return _changed(traffic, self.of, context, lambda tokens: np.rint(tokens * self.factor), "factor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipLengths:
    TITLE: ClassVar = "Clip lengths"
    ABOUT: ClassVar = "Shorten what is longer, lengthen what is shorter; everything between stays as it is."

    of: str = described.choice("Which", OF, default="prompt")
    min_tokens: int | None = described.whole(
        "At least", "tokens", default=None, either=True, low=1, high=MAX_TOKENS
    )
    max_tokens: int | None = described.whole(
        "At most", "tokens", default=None, either=True, low=1, high=MAX_TOKENS
    )

    def sentence(self) -> str:
        low = "" if self.min_tokens is None else f"at least {self.min_tokens:,}"
        high = "" if self.max_tokens is None else f"at most {self.max_tokens:,}"
        return f"Clip {dict(OF)[self.of]} to {' and '.join(part for part in (low, high) if part)} tokens"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        low, high = self.min_tokens, self.max_tokens
        if low is None and high is None:
            raise refuse("Give at least one end.", code="option", field="min_tokens")
        if low is not None and high is not None and high < low:
            raise refuse("This is below the other end.", code="option", field="max_tokens")
        least, most = low or 1, high or MAX_TOKENS
        return _changed(traffic, self.of, context, lambda tokens: np.clip(tokens, least, most), "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTokens:
    TITLE: ClassVar = "Add tokens"
    ABOUT: ClassVar = (
        "Add so many tokens to the end of every prompt or output; a negative number takes them away."
    )

    of: str = described.choice("Which", OF, default="prompt")
    tokens: int = described.whole("Tokens", "tokens", low=-MAX_TOKENS, high=MAX_TOKENS)

    def sentence(self) -> str:
        if self.tokens < 0:
            return f"Take {-self.tokens:,} tokens off all {dict(OF)[self.of]}"
        return f"Add {self.tokens:,} tokens to all {dict(OF)[self.of]}"

    def apply(self, traffic: Traffic, context: Context) -> Traffic:
        return _changed(traffic, self.of, context, lambda tokens: tokens + self.tokens, "tokens")


def _changed(traffic: Traffic, of: str, context: Context, rule: Any, field: str) -> Traffic:
    """The traffic with prompts or outputs as `rule` (float64[N] -> float64[N], rising) makes them."""
    before = traffic.prompt_tokens if of == "prompt" else traffic.output_tokens
    raw: Floats = rule(before.astype(np.float64))
    findings = [_findings(raw, of)] if (raw < 1).any() else []
    after = _whole(raw, field)
    if of == "output":
        cap = traffic.max_tokens
        caps = None if cap is None else _whole(rule(cap.astype(np.float64)), field)
        return replace(traffic, output_tokens=after, max_tokens=caps).with_warnings(*findings)
    hashes = traffic.prefix_hashes
    if hashes is not None:
        hashes = prefixes.refitted(hashes, before, after, context.salt, field)
        if hashes is None:
            message = (
                "The size of the prefix blocks is not known, so what changed prompts share was forgotten."
            )
            findings.append(Finding("prefixes_forgotten", message, traffic.requests))
    return replace(traffic, prompt_tokens=after, prefix_hashes=hashes).with_warnings(*findings)


def _whole(raw: Floats, field: str) -> Integers:
    if raw.max() > MAX_TOKENS:
        message = f"The longest would be {raw.max():,.0f} tokens; {MAX_TOKENS:,} are the most."
        raise refuse(message, code="option", field=field)
    return np.maximum(1, raw).astype(np.int64)


def _findings(raw: Floats, of: str) -> Finding:
    count = int((raw < 1).sum())
    message = f"{count:,} {of}s would have come out below one token and have one."
    return Finding("raised_to_one", message, count)
