"""What there is to deploy on: one kind of hardware, or two, each with GPUs per replica, a price and a limit.

The first kind is number 0, the second 1; candidates name kinds by their number. A replica costs its GPUs times their
price by the hour. Of one kind, or without prices, cost is counted in GPUs: then a GPU of either kind counts the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planner.search.combinations import Candidate
from planner.search.conditions import Conditions

FIRST: Final = 0
SECOND: Final = 1
Kinds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """By number of the kind: names, GPUs of a replica, price of a GPU-hour (None: not given), most replicas."""

    names: tuple[str, ...] = ("",)
    gpus: tuple[int, ...] = (1,)
    prices: tuple[float | None, ...] = (None,)
    most: tuple[int, ...] = (1 << 20,)

    @classmethod
    def of(cls, terms: Conditions, names: tuple[str, ...], most_replicas: int) -> Fleet:
        gpus = (terms.gpus_per_replica, terms.second_gpus_per_replica)[: len(names)]
        limits = (terms.max_gpus, terms.second_max_gpus)[: len(names)]
        return cls(
            names=names,
            gpus=gpus,
            prices=(terms.price_per_gpu_hour, terms.second_price_per_gpu_hour)[: len(names)],
            most=tuple(
                most_replicas if limit is None else min(most_replicas, limit // each)
                for limit, each in zip(limits, gpus, strict=True)
            ),
        )

    @property
    def kinds(self) -> range:
        return range(len(self.names))

    @property
    def per_replica(self) -> tuple[float, ...]:
        """What a replica of each kind costs, to compare deployments by."""
        if len(self.names) > 1 and None not in self.prices:
            return tuple(gpus * (price or 0.0) for gpus, price in zip(self.gpus, self.prices, strict=True))
        return tuple(float(gpus) for gpus in self.gpus) if len(self.names) > 1 else (1.0,)

    def allows(self, candidate: Candidate) -> bool:
        counts = dict.fromkeys(self.kinds, 0)
        for kind, replicas in parts(candidate):
            counts[kind] += replicas
        return all(counts[kind] <= self.most[kind] for kind in self.kinds)

    def gpus_of(self, candidate: Candidate) -> int:
        return sum(self.gpus[kind] * replicas for kind, replicas in parts(candidate))

    def price_of(self, candidate: Candidate) -> float | None:
        """An hour; None where a price is not known."""
        found = 0.0
        for kind, replicas in parts(candidate):
            price = self.prices[kind]
            if price is None:
                return None
            found += replicas * self.gpus[kind] * price
        return found

    def where(self, candidate: Candidate) -> str:
        """`RTX 4090`, `A for prefill and B for decode`; "" where the only kind has no name."""
        if candidate.pools is None or len(set(candidate.kinds)) == 1:
            return self.names[candidate.kinds[-1]]
        prefill, decode = candidate.kinds
        return f"{self.names[prefill]} for prefill and {self.names[decode]} for decode"

    def hardware(self, candidate: Candidate) -> str | dict[str, str]:
        """The names, as a summary has them."""
        if candidate.pools is None:
            return self.names[candidate.kind]
        prefill, decode = candidate.kinds
        return {"prefill": self.names[prefill], "decode": self.names[decode]}


ONE_KIND: Final = Fleet()


def parts(candidate: Candidate) -> Iterator[tuple[int, int]]:
    """(kind, replicas) of each pool."""
    if candidate.pools is None:
        yield candidate.kind, candidate.replicas
        return
    prefill, decode = candidate.kinds
    yield prefill, candidate.prefill_replicas
    yield decode, candidate.decode_replicas


def cost_of(candidate: Candidate, per_replica: tuple[float, ...]) -> float:
    """Rounded, so that the same deployment costs the same however it was added up."""
    return round(sum(per_replica[kind] * replicas for kind, replicas in parts(candidate)), 9)
