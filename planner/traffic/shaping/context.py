"""What an operation may use beside the traffic it is applied to."""

from __future__ import annotations

from dataclasses import dataclass

from planner.traffic.source import Source


@dataclass(frozen=True, slots=True)
class Context(Source):
    """A source, and `salt` for hashes: both belong to this operation of this recipe alone."""

    salt: int
