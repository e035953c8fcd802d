"""Requests that share a time stamp, spread over the tick of the clock that recorded them.

Mooncake's public conversation trace has its requests on a grid of 3 s. Played as recorded, forty of them
arrive at once and wait for one another; in truth they came over the three seconds. Which of the two is
planned for changes TTFT, so spreading is a choice, recorded in the recipe and in a finding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.traffic.model import Finding, Traffic


def spread_grid(traffic: Traffic) -> Traffic:
    """The m requests on one stamp at even distances over the gap to the next stamp, but over at most the
    usual (median) gap, so that a pause stays a pause. Order and the first arrival stay; others move later
    by less than a tick. Traffic with a single stamp, or none shared, is returned as it is."""
    stamps, first, count = np.unique(traffic.arrival_s, return_index=True, return_counts=True)
    if len(stamps) < 2 or len(stamps) == traffic.requests:
        return traffic
    gaps_s = np.diff(stamps)
    tick_s = float(np.median(gaps_s))
    width_s = np.minimum(np.append(gaps_s, tick_s), tick_s)
    place = np.arange(traffic.requests) - np.repeat(first, count)
    arrival_s = traffic.arrival_s + np.repeat(width_s / count, count) * place
    message = f"Requests on one time stamp were spread evenly over ticks of {tick_s:.6g} s."
    moved = Finding("grid_spread", message, int((place > 0).sum()))
    recipe = {**traffic.recipe, "spread_grid": {"tick_s": tick_s}}
    return replace(traffic, arrival_s=arrival_s, recipe=recipe).with_warnings(moved)
