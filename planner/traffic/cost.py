"""What making a traffic costs, foreseen from its size: so that what takes long is left to a worker.

The unit is a *value*: a request, or one hash of a prompt's block. Reading, changing, describing and packing them cost
about as much each, whatever the operation (measured with 100,000 and 1,000,000 requests, without hashes and
with nine each, on one core of a cloud CPU: 0.10 µs to read, 0.07 µs for an operation, 0.6 µs to describe and pack).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.traffic.generating.model import SyntheticModel, generate
from planner.traffic.model import Traffic
from planner.traffic.shaping import Operation, Parent
from planner.traffic.shaping.kinds import Merge
from planner.traffic.shaping.timing import AddBursts, Repeat
from planner.traffic.source import Source

READ_S, OPERATION_S, STORE_S = 0.10e-6, 0.07e-6, 0.60e-6
PILOT_REQUESTS = 1_000


def values_of(traffic: Traffic) -> int:
    hashes = traffic.prefix_hashes
    return traffic.requests + (len(hashes.flat) if hashes is not None else 0)


def values_stated(statistics: Mapping[str, Any]) -> float:
    """Of a stored traffic by its statistics, without its arrays: of hashes as many as its prompts have blocks."""
    requests = float(statistics["requests"])
    block = statistics.get("block_tokens")
    if statistics.get("prefix_hit_rate") is None or not block:
        return requests
    return requests * (1.5 + float(statistics["prompt_tokens"]["mean"]) / float(block))


def shaping_s(
    values: float, requests: int, operations: Sequence[Operation], others: Mapping[str, float]
) -> float:
    """CPU-seconds of shaping a traffic of so many values and requests, at most; `others` are the values of what is
    merged, by id."""
    total = READ_S * (values + sum(others.values()))
    each = values / max(requests, 1)
    for operation in operations:
        match operation:
            case Repeat():
                values *= operation.times
            case AddBursts():
                values += operation.bursts * operation.requests * each
            case Merge():
                values += others.get(operation.traffic, 0.0)
        total += OPERATION_S * values
    return total + STORE_S * values


def generating_s(
    model: SyntheticModel, requests: int | None, duration_s: float | None, others: Sequence[Parent]
) -> float:
    """CPU-seconds of generating so many requests, or all of a duration. How many hashes a request has is seen from
    a pilot of PILOT_REQUESTS. TrafficError as `generate`."""
    if requests is None:
        source = Source(np.random.default_rng(0), {other.id: other.traffic for other in others})
        requests = int(min(1e9, (duration_s or 0.0) * model.arrivals.mean_rate_per_s(source)))
    if model.sessions is None or requests <= PILOT_REQUESTS:
        return STORE_S * requests
    pilot = generate(model, requests=PILOT_REQUESTS, others=others)
    return (STORE_S + OPERATION_S) * requests * values_of(pilot) / pilot.requests
