"""What clusters that were worked out on paper are made of: engines whose steps take 0.1 s a token, blocks of 4 tokens,
wires of 1 byte per token, and prompts told apart by one hash for each block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from calibration.steptime.scalar import linear_model
from calibration.transfer import TransferTable
from planner.simulation.cluster import reference
from planner.simulation.cluster.deployment import Network, Replica
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs
from planner.simulation.prefix import PrefixBlocks, blocks_of
from planner.traffic.model import PrefixHashes

both = pytest.mark.parametrize(
    "simulate", [reference.simulate, cluster.simulate], ids=["reference", "kernel"]
)
Simulate = Callable[..., ClusterOutcome]
BLOCK = 4


def engine(
    *,
    budget: int = 1_000,
    blocks: int = 1_000,
    caches: bool = True,
    block: int = BLOCK,
    seats: int = 100,
    policy: str = "fcfs",
) -> Replica:
    knobs = VllmKnobs(
        budget,
        seats,
        num_blocks=blocks,
        block_size=block,
        async_scheduling=False,
        prefix_caching=caches,
        policy=policy,
    )
    return Replica(knobs, linear_model(token_s=0.1))


def wire(bytes_per_s: float, **limits: float) -> Network:
    return Network(TransferTable.line(limits.pop("latency_s", 0.0), bytes_per_s), **limits)


def requests(*rows: tuple[float, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
    """(arrival_s, prompt, output) each."""
    arrival, prompt, output = zip(*rows, strict=True)
    return np.array(arrival, dtype=np.float64), np.array(prompt), np.array(output), None


def prompts_of(load: tuple[np.ndarray, np.ndarray, np.ndarray, None], *hashes: Sequence[int]) -> PrefixBlocks:
    offsets = np.cumsum([0, *(len(each) for each in hashes)])
    flat = np.array([one for each in hashes for one in each], dtype=np.uint64)
    return blocks_of(PrefixHashes(flat, offsets, BLOCK), load[1], BLOCK)


def near(*values: float) -> object:
    return pytest.approx(list(values), abs=1e-6, nan_ok=True)


# Three prompts: A of 17 tokens, B of 25 that begins as A does for 16 of them, C the same as A.
A, B = (1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 7, 8)
FAR_APART = requests((0.0, 17, 1), (10.0, 25, 1), (20.0, 17, 1))
