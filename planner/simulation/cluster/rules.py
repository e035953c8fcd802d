"""A deployment and the settings of a run, checked and laid out alike for both topologies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibration.transfer import TransferTable
from planner.simulation.cluster.deployment import (
    PULL,
    Aggregated,
    Deployment,
    HandOff,
    Loss,
    Network,
    QueueLimit,
    Replica,
)

NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """An aggregated deployment is a decode pool without a prefill pool. `losses` by time."""

    prefill: tuple[Replica, ...]
    decode: tuple[Replica, ...]
    prefill_router: str
    decode_router: str
    local_prefill_tokens: int
    hand_off: HandOff
    network: Network
    concurrency: int
    think_s: float
    queue_requests: int
    queue_tokens: int
    losses: tuple[Loss, ...]
    warm_up_requests: int

    @property
    def closed_loop(self) -> bool:
        return self.concurrency > 0

    @property
    def pulled(self) -> bool:
        return self.hand_off.mode == PULL

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self.prefill + self.decode


def rules_of(
    deployment: Deployment,
    concurrency: int = 0,
    think_s: float = 0.0,
    queue_limit: QueueLimit | None = None,
    losses: Sequence[Loss] = (),
    warm_up_requests: int = 0,
) -> Rules:
    """ValueError names the setting that cannot be."""
    if concurrency < 0:
        raise ValueError(f"concurrency must not be negative, not {concurrency}")
    if warm_up_requests < 0:
        raise ValueError(f"warm_up_requests must not be negative, not {warm_up_requests}")
    if not 0.0 <= think_s < math.inf:
        raise ValueError(f"think_s must be finite and not negative, not {think_s}")
    limit = queue_limit or QueueLimit()
    split = None if isinstance(deployment, Aggregated) else deployment
    decode = deployment.replicas if isinstance(deployment, Aggregated) else deployment.decode
    for loss in losses:
        if not 0 <= loss.replica < len(decode):
            raise ValueError(f"there is no replica {loss.replica} to lose: the pool has {len(decode)}")
        if not 0.0 <= loss.time_s < math.inf:
            raise ValueError(f"the time of a loss must be finite and not negative, not {loss.time_s}")
    if len({loss.replica for loss in losses}) < len(losses):
        raise ValueError("a replica can be lost only once")
    return Rules(
        prefill=split.prefill if split else (),
        decode=decode,
        prefill_router=split.prefill_router if split else "",
        decode_router=deployment.router if isinstance(deployment, Aggregated) else deployment.decode_router,
        local_prefill_tokens=split.local_prefill_tokens if split else 0,
        hand_off=split.hand_off if split else HandOff(PULL, bytes_per_token=1.0),  # nothing is handed over
        network=split.network if split else Network(TransferTable.line(0.0, 1.0)),
        concurrency=concurrency,
        think_s=think_s,
        queue_requests=NO_LIMIT if limit.requests is None else limit.requests,
        queue_tokens=NO_LIMIT if limit.tokens is None else limit.tokens,
        losses=tuple(sorted(losses, key=lambda loss: loss.time_s)),
        warm_up_requests=warm_up_requests,
    )
