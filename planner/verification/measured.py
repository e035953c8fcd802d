"""What a load run measured, in the plan's own metrics, and what is doubtful about it.

TTFT runs from when the request was due, not from when the client got round to sending it: that is what its user would
have seen. ITL is the distribution of gaps between chunks; where chunks carry several tokens it is not the gap between
tokens, so ITL is then withheld and TPOT, which needs first and last chunk and the number of tokens only, stands for it.
Percentiles are of pooled values. Seconds, tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.search.seconds import percent_text
from planner.verification.stream import Answer

Floats = NDArray[np.float64]

SEVERAL_SHARE: Final = 0.01  # of chunks with more than one token: beyond it gaps between chunks are not ITL
TOGETHER_S: Final = 20e-6  # chunks closer than this were read at once: something on the way had kept them
LAG_SHARE: Final = 0.05  # of the median TTFT: beyond it the client measures itself
SHORT_SHARE: Final = 0.01  # of answers with other lengths than asked for


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """`values_s` by metric, pooled: "ttft", "tpot", "e2e" per request, "itl" per gap (absent: cannot be known).

    `offered_per_s`: sent; `achieved_per_s`: answered, between the ends of the first and the last answer.
    `errors`: how many answers failed, by reason. `lag_s`: how late the client sent, per request sent. `doubts`: why
    figures may not be what they seem.
    """

    requests: int
    answered: int
    values_s: Mapping[str, Floats]
    errors: Mapping[str, int]
    lag_s: Floats
    offered_per_s: float
    achieved_per_s: float
    doubts: tuple[str, ...]

    def percentile_s(self, metric: str, percentile: float) -> float | None:
        """None where nothing was measured."""
        values = self.values_s.get(metric)
        return float(np.percentile(values, percentile)) if values is not None and len(values) else None

    def to_dict(self, percentiles: Sequence[float] = (50, 90, 95, 99)) -> dict[str, Any]:
        metrics = {
            metric: {
                "samples": len(values),
                **{f"p{p:g}": self.percentile_s(metric, p) for p in percentiles},
            }
            for metric, values in self.values_s.items()
        }
        return {
            "requests": self.requests,
            "answered": self.answered,
            "metrics": metrics,
            "errors": dict(self.errors),
            "lag": {
                f"p{p:g}": float(np.percentile(self.lag_s, p)) if len(self.lag_s) else None
                for p in (50, 99, 100)
            },
            "offered_per_s": self.offered_per_s,
            "achieved_per_s": self.achieved_per_s,
            "doubts": list(self.doubts),
        }


def measure(answers: Sequence[Answer]) -> Measured:
    """Sum up a run. ValueError for no answers at all."""
    if not answers:
        raise ValueError("no request was made")
    good = [answer for answer in answers if answer.ok]
    several = [a for a in good if a.tokens >= 2 and len(a.chunk_s) >= 2]  # of one chunk no gap is known
    ttft = np.array([a.chunk_s[0] - a.due_s for a in good])
    values: dict[str, Floats] = {
        "ttft": ttft,
        "tpot": np.array([(a.chunk_s[-1] - a.chunk_s[0]) / (a.tokens - 1) for a in several]),
        "e2e": np.array([a.chunk_s[-1] - a.due_s for a in good]),
    }
    lag = np.array([a.sent_s - a.due_s for a in answers if a.sent_s >= 0])
    doubts = [*_about_lengths(good), *_about_usage(good)]
    if _several_share(good) > SEVERAL_SHARE:
        doubts.append(
            f"{percent_text(_several_share(good))} of chunks carry several tokens: gaps between chunks are not gaps "
            "between tokens, so ITL is withheld; TPOT stands."
        )
    else:
        values["itl"] = np.concatenate([np.diff(a.chunk_s) for a in good]) if good else np.empty(0)
        together = float(np.mean(values["itl"] < TOGETHER_S)) if len(values["itl"]) else 0.0
        if together > SEVERAL_SHARE:
            doubts.append(
                f"{percent_text(together)} of chunks came at once with the one before them: something between model "
                "and client gathers them, so small gaps are too small and large ones too large."
            )
    if len(lag) and len(ttft) and np.percentile(lag, 99) > LAG_SHARE * np.median(ttft):
        doubts.append(
            f"The client itself sent late (p99 {np.percentile(lag, 99) * 1e3:.3g} ms): TTFT holds that too. Run it on "
            "a machine of its own."
        )
    due = max(a.due_s for a in answers) - min(a.due_s for a in answers)
    ends = [a.chunk_s[-1] for a in good]
    # From end to end: the last answer's own time is no time in which others could have been answered.
    took = max(ends) - min(ends) if ends else 0.0
    return Measured(
        requests=len(answers), answered=len(good), values_s=values,
        errors=dict(Counter(a.error or "no token came" for a in answers if not a.ok).most_common()),
        lag_s=lag, offered_per_s=(len(answers) - 1) / due if due > 0 else 0.0,
        achieved_per_s=(len(good) - 1) / took if took > 0 else 0.0, doubts=tuple(doubts),
    )  # fmt: skip


def _several_share(good: Sequence[Answer]) -> float:
    """Share of chunks that carry several tokens: by the running count, else by what the final usage leaves over."""
    chunks = sum(len(a.chunk_tokens) for a in good)
    several = 0
    for a in good:
        if a.counted:
            several += sum(tokens > 1 for tokens in a.chunk_tokens)
        else:
            several += max(0, min(a.tokens - len(a.chunk_tokens), len(a.chunk_tokens)))
    return several / chunks if chunks else 0.0


def _about_lengths(good: Sequence[Answer]) -> list[str]:
    other = sum(a.tokens != a.asked_tokens for a in good)
    if not good or other <= SHORT_SHARE * len(good):
        return []
    return [
        f"{other:,} of {len(good):,} answers have other lengths than asked for: the server does not honour ignore_eos "
        "or max_tokens, so its load is not the plan's."
    ]


def _about_usage(good: Sequence[Answer]) -> list[str]:
    silent = sum(a.usage_tokens is None for a in good)
    # A chunk has at least one token: the first may hold none that show, so one more chunk than tokens is no lie.
    lies = sum(a.usage_tokens is not None and a.usage_tokens + 1 < len(a.chunk_s) for a in good)
    found = []
    if silent:
        found.append(
            f"{silent:,} answers came without a count of tokens: every chunk is taken for one token."
        )
    if lies:
        found.append(
            f"{lies:,} answers claim fewer tokens than they had chunks: the server's count is wrong, so TPOT is too."
        )
    return found
