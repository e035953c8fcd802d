"""A cluster's run looked at while it goes on.

A simulation is causal: nothing that is still to come is earlier than what has happened. So a caller who watches a run
can tell that it need not go on, and ends it with an exception of its own. Seconds; k requests have come so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from planner.simulation.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Told:
    """What is certain of the first k requests. first_token_s, done_s float64[k]: when; of those that have not `begun`,
    or not `ended`, the earliest that it can be. max_gap_s float64[k]: of those that have ended. served bool[k]: not
    turned away."""

    first_token_s: Floats
    begun: Bools
    done_s: Floats
    ended: Bools
    max_gap_s: Floats
    served: Bools


class Glance(Protocol):
    """arrived: how many requests have come; peak_running: the most of a decode replica so far."""

    @property
    def arrived(self) -> int: ...

    @property
    def peak_running(self) -> int: ...

    def gap_counts(self) -> Ints:
        """int64[bins]: the gaps between tokens so far (`simulation.gaps`)."""
        ...

    def told(self) -> Told: ...


#: Shown a run of an open loop now and then; what it raises ends the run.
Watch = Callable[[Glance], None]
