"""Statistics of a traffic, by definitions that others can repeat.

rate = (rows - 1) / duration, so that n gaps make the rate and not n + 1 fence posts; CV = population
deviation of the gaps / their mean; percentiles interpolate linearly between sorted values (numpy's default);
prefix hit rate = leading blocks already seen in an earlier request / all blocks, with a cache that never
forgets; index of dispersion = variance / mean of the arrivals in whole windows of a length; rank correlation =
Spearman's, ties at their mean rank. Where a figure does not exist (the rate of one request) it is None, never 0 or NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.traffic.curves import dispersion_by_window, interarrival_cv, prefix_hit_rate
from planner.traffic.dependence import rank_correlation
from planner.traffic.growing import parts
from planner.traffic.model import Integers, Traffic


def statistics(traffic: Traffic) -> dict[str, Any]:
    """JSON-safe figures: times in seconds, lengths in tokens. `rows` counts what the file held, `requests`
    what the traffic holds; all other figures are of the requests. `tpot_requests` have the two outputs
    without which time per output token does not exist."""
    result: dict[str, Any] = {
        "rows": traffic.rows_read,
        "requests": traffic.requests,
        "duration_s": traffic.duration_s,
        "rate_per_s": traffic.rate_per_s,
        "interarrival_cv": interarrival_cv(traffic.arrival_s),
        "dispersion": dispersion_by_window(traffic.arrival_s),
        "rank_correlation": rank_correlation(traffic.prompt_tokens, traffic.output_tokens),
        "prompt_tokens": length_statistics(traffic.prompt_tokens),
        "output_tokens": length_statistics(traffic.output_tokens),
        "tpot_requests": int((traffic.output_tokens >= 2).sum()),
        "max_context_tokens": _longest(traffic),
        "warnings": [finding.to_dict() for finding in traffic.warnings],
    }
    if traffic.prefix_hashes is not None:
        result["prefix_hit_rate"] = prefix_hit_rate(traffic.prefix_hashes)
        result["block_tokens"] = traffic.prefix_hashes.block_tokens
    if traffic.request_class is not None:
        counts = np.bincount(traffic.request_class, minlength=len(traffic.class_names))
        result["classes"] = dict(zip(traffic.class_names, counts.tolist(), strict=True))
    return result


def _longest(traffic: Traffic) -> int:
    """The most tokens of one request, prompt and output."""
    sums = (traffic.prompt_tokens[part] + traffic.output_tokens[part] for part in parts(traffic.requests))
    return int(max(each.max() for each in sums))


def length_statistics(tokens: Integers) -> dict[str, float]:
    """p50, mean, p99 and max of token counts, int64[N >= 1]."""
    p50, p99 = np.percentile(tokens, [50, 99]).tolist()
    return {"p50": p50, "mean": float(tokens.mean()), "p99": p99, "max": int(tokens.max())}
