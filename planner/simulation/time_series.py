"""A run over time, in bins: queue, running requests, KV use, throughput. Every figure is a mean over its bin.

What requests do follows exactly from their own times: the number that wait in a bin is the time that all of them
together waited within it, over its width. What steps do (seats, blocks, busy time, tokens) comes from the sums that
the simulator kept (`time_bins`), exactly too. Memory is that of the bins, however long the run. Seconds, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Floats
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.outcome import Outcome
from planner.simulation.time_bins import (
    BUSY_S,
    COMPUTED_TOKENS,
    GENERATED_TOKENS,
    HELD_BLOCKS,
    HELD_SEATS,
    STEPS,
)


@dataclass(frozen=True, slots=True, eq=False)
class TimeSeries:
    """B bins of `width_s` from time 0 (the last one may reach beyond the run's end); float64[B] each.

    waiting: requests without a first step. running: seats taken, all replicas together. kv_share: of the pools'
    blocks; busy_share: of the replicas' time. Rates per second: requests arrived and finished, tokens computed
    (prompt, recomputed and generated ones) and generated (streamed to clients), steps.
    """

    width_s: float
    waiting: Floats
    running: Floats
    kv_share: Floats
    busy_share: Floats
    arrived_per_s: Floats
    finished_per_s: Floats
    computed_tokens_per_s: Floats
    generated_tokens_per_s: Floats
    steps_per_s: Floats


def time_series(outcome: Outcome | ClusterOutcome, most_bins: int | None = None) -> TimeSeries:
    """The series of a run that kept bins (`bin_s`), neighbours joined until there are at most `most_bins`.

    ValueError when the run kept none.
    """
    requests = outcome.requests if isinstance(outcome, ClusterOutcome) else outcome
    if requests.bins is None:
        raise ValueError("the run kept no bins: simulate it with bin_s")
    sums, width_s = requests.bins.copy(), requests.bin_s
    count = max(1, int(np.ceil(requests.makespan_s / width_s)))
    if isinstance(outcome, ClusterOutcome):
        sums[:, GENERATED_TOKENS] = _streamed(outcome, width_s, len(sums))
    sums[count - 1] += sums[count:].sum(axis=0)  # what happened at the run's very end
    joined = 1 if most_bins is None else -(-count // most_bins)
    sums = _join(sums[:count], joined)
    width_s *= joined
    edges = _edges(len(sums), width_s)
    served = requests.served
    blocks, seconds = max(requests.kv_blocks, 1) * width_s, requests.replicas * width_s
    return TimeSeries(
        width_s=width_s,
        waiting=_mean_number(requests.arrival_s[served], requests.first_scheduled_s[served], edges),
        running=sums[:, HELD_SEATS] / width_s,
        kv_share=sums[:, HELD_BLOCKS] / blocks,
        busy_share=sums[:, BUSY_S] / seconds,
        arrived_per_s=_count(requests.arrival_s, edges) / width_s,
        finished_per_s=_count(requests.done_s[served], edges) / width_s,
        computed_tokens_per_s=sums[:, COMPUTED_TOKENS] / width_s,
        generated_tokens_per_s=sums[:, GENERATED_TOKENS] / width_s,
        steps_per_s=sums[:, STEPS] / width_s,
    )


def _streamed(outcome: ClusterOutcome, width_s: float, bins: int) -> Floats:
    """Tokens that clients got: those of the decode replicas, and first tokens that came from the prefill side."""
    total = np.zeros(bins)
    for use in outcome.decode:
        if use.bins is not None:
            total += _join(
                use.bins[:, GENERATED_TOKENS : GENERATED_TOKENS + 1], round(width_s / use.bin_s), bins
            )[:, 0]
    if not outcome.pulled:
        first_s = outcome.requests.first_token_s[outcome.handed_over | _prefill_alone(outcome)]
        total += _count(first_s, _edges(bins, width_s))
    return total


def _prefill_alone(outcome: ClusterOutcome) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """bool[N]: a single token, which never left the prefill side."""
    mask = outcome.requests.served & (outcome.prefill_replica >= 0) & (outcome.decode_replica < 0)
    return np.asarray(mask, dtype=np.bool_)


def _join(sums: Floats, factor: int, length: int | None = None) -> Floats:
    """Rows added up in groups of `factor`, zeros behind the last up to `length` rows."""
    rows = -(-len(sums) // factor)
    padded = np.zeros((rows * factor, sums.shape[1]))
    padded[: len(sums)] = sums
    joined: Floats = padded.reshape(rows, factor, -1).sum(axis=1)
    if length is not None:
        joined = np.concatenate([joined, np.zeros((length - rows, sums.shape[1]))])
    return joined


def _edges(bins: int, width_s: float) -> Floats:
    edges: Floats = np.arange(bins + 1, dtype=np.float64) * width_s
    return edges


def _mean_number(from_s: Floats, to_s: Floats, edges: Floats) -> Floats:
    """How many intervals [from, to) a bin lies in, on average over the bin."""
    inside = _time_since(from_s, edges) - _time_since(to_s, edges)
    means: Floats = np.maximum(np.diff(inside), 0.0) / np.diff(edges)
    return means


def _time_since(times_s: Floats, edges: Floats) -> Floats:
    """At each edge: the time since each of `times_s` that has come, added up."""
    ordered = np.sort(times_s)
    come = np.searchsorted(ordered, edges, side="left")
    added = np.concatenate([[0.0], np.cumsum(ordered)])
    since: Floats = come * edges - added[come]
    return since


def _count(times_s: Floats, edges: Floats) -> Floats:
    """Events per bin; one at the very end of the last bin counts there."""
    at = np.minimum((times_s / (edges[1] - edges[0])).astype(np.int64), len(edges) - 2)
    counts: Floats = np.bincount(at, minlength=len(edges) - 1).astype(np.float64)
    return counts
