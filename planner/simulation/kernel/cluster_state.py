"""Everything that a cluster knows: many replicas' `State`, and what lies between them.

All replicas share one array of requests, with one record for each side's part in a request, its *leg*: the decode leg
of request i at position i, the prefill leg at count + i. A prefill leg has one output token. A decode leg that takes
over a hand-off starts with one emitted token (pull: really the prompt's last, so the prompt is one shorter and the
outputs are one more). Compiled code has `Between` alone, and gets from it to each replica's state and step times.
Seconds, tokens, blocks, bytes; -1 is none, or not yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.steptime.scalar import StepTimeArrays
from calibration.transfer import TransferArrays
from planner.simulation.arrays import Ints
from planner.simulation.kernel.by_address import Layout, row_of
from planner.simulation.kernel.cluster_records import EVENT, LEG, LINK, POOL, POOL_ENTRY, REPLICA, RUN, WAY
from planner.simulation.kernel.compiled import inlined
from planner.simulation.kernel.records import KNOBS, NOW, PLACE, PREFIX, REQUEST, Records
from planner.simulation.kernel.state import State, state_at
from planner.simulation.kernel.step_time import model_at, table_at

Floats = NDArray[np.float64]


class Between(NamedTuple):
    """For R replicas (prefill first), N requests, L legs. `knobs` to `places` are the replicas' own, or shared by all;
    `states` to `tables` are rows of addresses, see by_address."""

    run: Records  # RUN[1]
    ways: Records  # WAY[N]
    legs: Records  # LEG[L]
    replicas: Records  # REPLICA[R]
    next_s: Floats  # [R] each replica's next schedule; inf asleep
    events: Records  # EVENT[...] a heap
    active: Ints  # [N] requests whose transfers are on links, in the order of joining
    links: Records  # LINK[...]
    paths: NDArray[
        np.int32
    ]  # [P * D + 1, 4] links between two replicas, then from the prefix pool; -1 to fill up
    pool: Records  # POOL[1]
    pool_entries: Records  # POOL_ENTRY[distinct + N] shared blocks by name, then each prompt's own
    knobs: Records  # KNOBS[R]
    now: Records  # NOW[R]
    requests: Records  # REQUEST[L]
    prefix: Records  # PREFIX[L]; this and the next are as good as empty unless somebody caches prefixes
    places: Records  # PLACE[...] leg by leg
    states: Ints  # [R, words]
    models: Ints  # [kinds, words]
    tables: Ints  # [2, words] between replicas, from the prefix pool


class Cluster(NamedTuple):
    """A cluster's arrays, and its row of addresses."""

    row: Ints  # [1, words] of `between`
    between: Between
    states: tuple[State, ...]  # replica by replica
    models: tuple[StepTimeArrays, ...]
    tables: tuple[TransferArrays, ...]


BETWEEN = Layout(
    Between,
    {
        "run": RUN,
        "ways": WAY,
        "legs": LEG,
        "replicas": REPLICA,
        "next_s": np.float64,
        "events": EVENT,
        "active": np.int64,
        "links": LINK,
        "paths": (np.int32, 2),
        "pool": POOL,
        "pool_entries": POOL_ENTRY,
        "knobs": KNOBS,
        "now": NOW,
        "requests": REQUEST,
        "prefix": PREFIX,
        "places": PLACE,
        "states": (np.int64, 2),
        "models": (np.int64, 2),
        "tables": (np.int64, 2),
    },
)
between_at: Callable[[Ints, int], Between] = row_of(BETWEEN)


@inlined
def replica_state(between: Between, r: int) -> State:
    """One replica's arrays."""
    return state_at(between.states, r)


@inlined
def replica_model(between: Between, r: int) -> StepTimeArrays:
    """How long one replica's steps take."""
    return model_at(between.models, between.replicas[r].model)


@inlined
def transfer_table(between: Between) -> TransferArrays:
    return table_at(between.tables, 0)


@inlined
def pool_table(between: Between) -> TransferArrays:
    return table_at(between.tables, 1)
