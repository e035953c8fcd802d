"""A deployment and the settings of a run, checked and laid out alike for both topologies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibration.transfer import TransferTable
from planner.simulation.cluster.deployment import (
    PREFIX_AWARE,
    PULL,
    Aggregated,
    Deployment,
    HandOff,
    Loss,
    Network,
    PrefixPool,
    QueueLimit,
    Replica,
    RequestClass,
    check_ttft_limit,
)
from planner.simulation.profile import Profile

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
    overlap_weight: float
    prefix_pool: PrefixPool | None
    classes: tuple[RequestClass, ...]
    ttft_limit_s: float  # inf: none, but for what a class says

    @property
    def rejects_early(self) -> bool:
        return self.ttft_limit_s < math.inf or any(each.ttft_limit_s is not None for each in self.classes)

    @property
    def keeps_accounts(self) -> bool:
        """Does somebody ask what the router has sent to each replica (see `reference_pool`)?"""
        return self.rejects_early or PREFIX_AWARE in (self.prefill_router, self.decode_router)

    @property
    def tells_prefills(self) -> bool:
        """Does somebody want to know when a prompt is computed?"""
        return self.keeps_accounts or self.prefix_pool is not None

    @property
    def closed_loop(self) -> bool:
        return self.concurrency > 0

    @property
    def pulled(self) -> bool:
        return self.hand_off.mode == PULL

    def profile_of(self, replica: Replica) -> Profile:
        """The engine, as it is where KV caches are loaded from elsewhere too."""
        profile = replica.knobs.profile
        if profile.named_ahead and (self.prefill or self.prefix_pool is not None):
            return dataclasses.replace(profile, named_ahead=0, dropped_hits=1)
        return profile

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self.prefill + self.decode


def speculating_profile(rules: Rules) -> Profile:
    """Of the first replica that decodes speculatively, or of any."""
    profiles = [replica.knobs.profile for replica in rules.replicas]
    return next((profile for profile in profiles if profile.drafts), profiles[0])


def _check_speculation(decode: Sequence[Replica], prefill: Sequence[Replica]) -> None:
    seeds = {
        replica.knobs.profile.luck_seed for replica in (*decode, *prefill) if replica.knobs.profile.drafts
    }
    if any(replica.knobs.profile.drafts for replica in prefill):
        raise ValueError("speculative decoding is simulated in the decode pool only, not in the prefill pool")
    if len(seeds) > 1:
        raise ValueError("all replicas that decode speculatively need the same seed")


def rules_of(
    deployment: Deployment,
    concurrency: int = 0,
    think_s: float = 0.0,
    queue_limit: QueueLimit | None = None,
    losses: Sequence[Loss] = (),
    warm_up_requests: int = 0,
    classes: Sequence[RequestClass] = (),
    ttft_limit_s: float | None = None,
) -> Rules:
    """ValueError names the setting that cannot be."""
    if concurrency < 0:
        raise ValueError(f"concurrency must not be negative, not {concurrency}")
    if warm_up_requests < 0:
        raise ValueError(f"warm_up_requests must not be negative, not {warm_up_requests}")
    if not 0.0 <= think_s < math.inf:
        raise ValueError(f"think_s must be finite and not negative, not {think_s}")
    check_ttft_limit("ttft_limit_s", ttft_limit_s)
    limit = queue_limit or QueueLimit()
    split = None if isinstance(deployment, Aggregated) else deployment
    decode = deployment.replicas if isinstance(deployment, Aggregated) else deployment.decode
    for loss in losses:
        if not 0 <= loss.replica < len(decode):
            raise ValueError(f"there is no replica {loss.replica} to lose: the pool has {len(decode)}")
        if not 0.0 <= loss.time_s < math.inf:
            raise ValueError(f"the time of a loss must be finite and not negative, not {loss.time_s}")
    _check_speculation(decode, split.prefill if split else ())
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
        overlap_weight=deployment.overlap_weight,
        prefix_pool=deployment.prefix_pool,
        classes=tuple(classes),
        ttft_limit_s=math.inf if ttft_limit_s is None else ttft_limit_s,
    )
