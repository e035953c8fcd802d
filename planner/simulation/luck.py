"""Which draft tokens are accepted: a coin for every token of every request, thrown before the run.

Draft i of a verification guesses output token e + i of a request that has emitted e. It is accepted with probability
`acceptance_rate`, and the coin depends on nothing but (seed, request, place of the token in the output): a counter
goes through a hash instead of a generator through its states. So the plain and the compiled simulator agree bit for
bit, and a request has the same luck whatever is scheduled around it, preemption included. As each token is guessed at
most once (the one behind the last accepted is the target model's own), coins are never thrown twice.

The drafts behind the first rejected one are lost, so a verification of k drafts emits (1 - a^(k+1)) / (1 - a) tokens
on average. Source: Leviathan et al. 2023 (independent acceptance at rate a); hash: the output function of
SplitMix64 (Steele et al. 2014).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.simulation.arrays import Ints

STRIDE: Final = 0x9E3779B97F4A7C15
FIRST_FACTOR: Final = 0xBF58476D1CE4E5B9
SECOND_FACTOR: Final = 0x94D049BB133111EB
COIN_BITS: Final = 53
_MASK: Final = (1 << 64) - 1


def threshold_of(acceptance_rate: float) -> int:
    """A coin of `COIN_BITS` bits below this is an accepted draft; exact at rates 0 and 1."""
    return round(acceptance_rate * (1 << COIN_BITS))


def keys_of(seed: int, requests: Ints) -> NDArray[np.uint64]:
    """uint64[N]: where the coins of each of these requests (their positions in the input) begin."""
    start = _hash(seed & _MASK)
    return np.array([_hash((start + STRIDE * int(request)) & _MASK) for request in requests], dtype=np.uint64)


def is_accepted(key: int, token: int, threshold: int) -> bool:
    """Is the draft for output token `token` (from 0) accepted? `kernel.speculation` has the same lines."""
    return _hash((key + STRIDE * token) & _MASK) >> (64 - COIN_BITS) < threshold


def _hash(value: int) -> int:
    value = ((value ^ (value >> 30)) * FIRST_FACTOR) & _MASK
    value = ((value ^ (value >> 27)) * SECOND_FACTOR) & _MASK
    return value ^ (value >> 31)
