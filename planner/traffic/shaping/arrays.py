"""What the operations share: choosing requests, putting requests together, limits on what may come out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic.arrivals import MAX_REQUESTS
from planner.traffic.errors import refuse
from planner.traffic.model import MAX_DURATION_S, Floats, PrefixHashes, Traffic
from planner.traffic.shaping import prefixes


def take(traffic: Traffic, chosen: NDArray[np.intp], field: str, arrival_s: Floats | None = None) -> Traffic:
    """The requests at these positions, in that order, with everything that belongs to them. Their times (or
    `arrival_s`, which never falls) are counted from the first of them. TrafficError (`field`) if none is left."""
    if not len(chosen):
        raise refuse("No request is left.", code="empty", field=field)
    if len(chosen) > MAX_REQUESTS:
        raise refuse(f"{len(chosen):,} requests are more than {MAX_REQUESTS:,}.", code="option", field=field)
    times = traffic.arrival_s[chosen] if arrival_s is None else arrival_s
    if times[-1] - times[0] > MAX_DURATION_S:
        raise refuse("It would last more than ten years.", code="option", field=field)
    rest: dict[str, Any] = {
        name: None if array is None else array[chosen]
        for name in ("prompt_tokens", "output_tokens", "max_tokens", "priority", "request_class")
        for array in (getattr(traffic, name),)
    }
    hashes = traffic.prefix_hashes
    if hashes is not None:
        prefixes.check_count(int(np.diff(hashes.offsets)[chosen].sum()), field)
    return replace(
        traffic,
        arrival_s=times - times[0],
        rows_read=len(chosen),
        prefix_hashes=None if hashes is None else hashes.take(chosen),
        **rest,
    )


def together(first: Traffic, second: Traffic, hashes: PrefixHashes | None, second_s: Floats) -> Traffic:
    """Both, by time; at equal times those of `first` come first. `second_s` are the times of `second` on the clock
    of `first`; both have their classes or neither has. `hashes` are of all requests of `first`, then of `second`."""

    def both(name: str, fill: str | int) -> Any:
        """A column that one of them lacks is filled with what its absence means."""
        parts = [getattr(traffic, name) for traffic in (first, second)]
        if all(part is None for part in parts):
            return None
        return np.concatenate([
            part if part is not None
            else getattr(traffic, fill) if isinstance(fill, str) else np.full(traffic.requests, fill, np.int64)
            for part, traffic in zip(parts, (first, second), strict=True)
        ])  # fmt: skip

    names = tuple(dict.fromkeys((*first.class_names, *second.class_names)))
    kinds = None
    if first.request_class is not None and second.request_class is not None:
        renumbered = np.array([names.index(name) for name in second.class_names], dtype=np.int16)
        kinds = np.concatenate((first.request_class, renumbered[second.request_class]))
    order = np.argsort(np.concatenate((first.arrival_s, second_s)), kind="stable")
    laid = replace(
        first,
        arrival_s=np.zeros(len(order)),
        prompt_tokens=both("prompt_tokens", 0),
        output_tokens=both("output_tokens", 0),
        max_tokens=both("max_tokens", "output_tokens"),
        priority=both("priority", 0),
        request_class=kinds,
        class_names=names if kinds is not None else (),
        prefix_hashes=hashes,
        rows_read=len(order),
    )
    times = np.concatenate((first.arrival_s, second_s))[order]
    return take(laid, order, "traffic", times)


def both_hashes(first: Traffic, second: PrefixHashes | None, requests: int) -> PrefixHashes | None:
    """Of `first` and of `requests` more; None if neither has any."""
    own = first.prefix_hashes
    if own is None and second is None:
        return None
    size = own.block_tokens if own is not None else second.block_tokens if second is not None else None
    return prefixes.joined([own, second], [first.requests, requests], size)


def mean_gap_s(traffic: Traffic) -> float | None:
    """None where all requests come at one instant."""
    return traffic.duration_s / (traffic.requests - 1) if traffic.duration_s > 0 else None
