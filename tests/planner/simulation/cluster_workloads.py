"""Random clusters: every topology, hand-off, router, link and limit, with small pools so that every rule is met."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np

from calibration.steptime.scalar import StepTimeArrays, linear_model
from calibration.transfer import TransferTable
from planner.simulation.cluster.deployment import (
    HAND_OFFS,
    ROUTERS,
    Aggregated,
    Deployment,
    Disaggregated,
    HandOff,
    Loss,
    Network,
    PrefixPool,
    QueueLimit,
    Replica,
    RequestClass,
)
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from tests.planner.simulation.workloads import (
    assert_equal,
    assert_same,
    random_knobs,
    random_prefix,
    with_holes,
)


def random_cluster(
    seed: int, most_requests: int = 25, engines: tuple[str, ...] = ("vllm",), *, cached: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a cluster's `simulate`; each pool runs one of the engines; `cached`: vLLM's may
    cache prefixes."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, most_requests + 1))
    prompts = rng.integers(1, int(rng.choice([2, 12, 60, 400])), count)
    outputs = rng.integers(1, int(rng.choice([2, 8, 40, 150])), count)
    span = float(rng.choice([0.0, 5.0, 40.0, 300.0]))
    arrival = np.sort(rng.random(count) * span)
    if rng.random() < 0.3:
        arrival = np.floor(arrival)
    priority = rng.integers(0, 3, count) if rng.random() < 0.3 else None
    largest = int((prompts + outputs).max())
    deployment = random_deployment(rng, largest, engines, by_priority=priority is not None, cached=cached)
    decodes = len(deployment.replicas if isinstance(deployment, Aggregated) else deployment.decode)
    losses = [
        Loss(float(rng.random() * (span + 20.0)), int(r))
        for r in rng.permutation(decodes)
        if rng.random() < 0.2
    ]
    arguments: tuple[Any, ...] = (arrival, prompts, outputs, priority, deployment)
    settings: dict[str, Any] = {
        "concurrency": int(rng.integers(1, 9)) if rng.random() < 0.3 else 0,
        "think_s": float(rng.choice([0.0, 0.5])),
        "queue_limit": random_limit(rng, int(prompts.max())),
        "losses": losses,
        "warm_up_requests": int(rng.choice([0, 0, 2])),
        "max_tokens": outputs + rng.integers(0, 40, count) if rng.random() < 0.3 else None,
    }
    if cached:
        settings |= random_hits(rng, prompts, deployment)
        if "assumed_hit_share" not in settings:
            arguments = add_prefix_pool(rng, arguments)
    settings |= random_classes(rng, count, by_priority=priority is not None)
    if settings["classes"] and any(each.priority for each in settings["classes"]):
        arguments = (*arguments[:3], None, arguments[4])
    return arguments, settings


def random_hits(rng: np.random.Generator, prompts: np.ndarray, deployment: Deployment) -> dict[str, Any]:
    """Prompts that share beginnings, none that do, or an assumed share."""
    replicas = all_replicas(deployment)
    sizes = [replica.knobs.profile.block_size for replica in replicas if replica.knobs.profile.caching]
    kind = rng.choice(["hashes", "hashes", "hashes", "own", "assumed"])
    if sizes and kind == "hashes":
        return {"prefix": random_prefix(rng, prompts, sizes[0])}
    if sizes and kind == "assumed":
        return {"assumed_hit_share": float(rng.choice([0.1, 0.5, 0.9, 1.0]))}
    return {}


def add_prefix_pool(rng: np.random.Generator, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """A pool of any size, for half of the deployments that can have one."""
    pool = PrefixPool(
        random_network(rng).table,
        bytes_per_s=float(rng.choice([20.0, 1e3, 1e6])),
        bytes_per_token=float(rng.choice([1.0, 100.0])),
        blocks=int(rng.integers(1, 60)) if rng.random() < 0.5 else None,
    )
    if rng.random() < 0.3 or not any(replica.knobs.profile.caching for replica in all_replicas(arguments[4])):
        return arguments
    return (*arguments[:4], replace(arguments[4], prefix_pool=pool))


def random_classes(rng: np.random.Generator, count: int, *, by_priority: bool) -> dict[str, Any]:
    """Classes for a third of the runs, limits of the predicted TTFT for some; priorities of classes for half of the
    runs with priorities."""
    limit = float(rng.choice([0.5, 3.0, 20.0])) if rng.random() < 0.12 else None
    if rng.random() < 0.7:
        return {"ttft_limit_s": limit, "classes": ()}
    own = rng.random() < 0.5
    classes = [
        RequestClass(
            f"class {i}",
            int(rng.integers(0, 3)) if own and by_priority else 0,
            float(rng.choice([1.0, 10.0])) if rng.random() < 0.2 else None,
        )
        for i in range(3)
    ]
    return {"ttft_limit_s": limit, "classes": classes, "request_class": rng.integers(0, 3, count)}


def all_replicas(deployment: Deployment) -> tuple[Replica, ...]:
    if isinstance(deployment, Aggregated):
        return deployment.replicas
    return (*deployment.prefill, *deployment.decode)


def random_limit(rng: np.random.Generator, longest: int) -> QueueLimit | None:
    if rng.random() < 0.7:
        return None
    return QueueLimit(
        requests=int(rng.integers(1, 5)) if rng.random() < 0.6 else None,
        tokens=int(rng.integers(1, 3 * longest)) if rng.random() < 0.6 else None,
    )


def random_deployment(
    rng: np.random.Generator, largest: int, engines: tuple[str, ...], *, by_priority: bool, cached: bool
) -> Deployment:
    block = int(rng.choice([1, 2, 4, 16, 3]))

    def replicas(most: int) -> tuple[Replica, ...]:
        engine = str(rng.choice(engines))
        kinds = [
            random_replica(rng, engine, largest, block, by_priority=by_priority, cached=cached)
            for _ in range(2)
        ]
        return tuple(kinds[int(rng.integers(2))] for _ in range(int(rng.integers(1, most + 1))))

    def router() -> str:
        return str(rng.choice(ROUTERS))

    if rng.random() < 0.2:
        return Aggregated(replicas(4), router(), overlap_weight=float(rng.choice([1.0, 0.0, 3.0])))
    return Disaggregated(
        replicas(3),
        replicas(3),
        random_hand_off(rng),
        random_network(rng),
        router(),
        router(),
        local_prefill_tokens=int(rng.choice([0, 0, 5, 40])),
        overlap_weight=float(rng.choice([1.0, 0.0, 3.0])),
    )


def random_replica(
    rng: np.random.Generator, engine: str, largest: int, block: int, *, by_priority: bool, cached: bool
) -> Replica:
    room = float(rng.choice([0.8, 1.0, 1.2, 2.0, 5.0, 100.0]))
    blocks = max(1, int(-(-largest // block) * room) + int(rng.integers(0, 3)))
    knobs = random_knobs(engine, rng, blocks, block)
    if isinstance(knobs, VllmKnobs):
        knobs = replace(knobs, policy="priority" if by_priority else "fcfs")
        if cached:
            knobs = replace(knobs, prefix_caching=bool(rng.random() < 0.8))
    host = int(rng.integers(0, 3)) if rng.random() < 0.3 else None
    return Replica(knobs, random_model(rng), float(rng.choice([0.0, 0.001])), host)


def random_model(rng: np.random.Generator) -> StepTimeArrays:
    model = linear_model(
        float(0.01 + rng.random()),
        token_s=float(rng.random() * 0.02),
        row_s=float(rng.random() * 0.02),
        decode_context_s=float(rng.random() * 1e-3),
        mixed_s=float(rng.random()),
        pair_s=float(rng.random() * 1e-4),
    )
    return with_holes(model, rng) if rng.random() < 0.3 else model


def random_hand_off(rng: np.random.Generator) -> HandOff:
    return HandOff(
        mode=str(rng.choice(HAND_OFFS)),
        bytes_per_token=float(rng.choice([1.0, 100.0])),
        message_s=float(rng.choice([0.0, 0.1, 1.0])),
        chunk_tokens=int(rng.choice([1, 1, 4, 50])),
        reserved_tokens=int(rng.choice([0, 0, 8])),
        reserve_outputs=bool(rng.random() < 0.3),
        staging_requests=int(rng.choice([0, 0, 1, 3])),
        lease_s=float(rng.choice([math.inf, 1.0, 5.0])),
        lease_renewed=bool(rng.random() < 0.5),
    )


def random_network(rng: np.random.Generator) -> Network:
    if rng.random() < 0.5:
        table = TransferTable.line(float(rng.choice([0.0, 0.05])), float(rng.choice([10.0, 300.0, 1e6])))
    else:
        table = TransferTable((10.0, 100.0, 1000.0), (0.0, 0.02, 0.05), (50.0, 300.0, 900.0))
    peak = table.peak_bytes_per_s

    def limit(share: float) -> float | None:
        return peak * float(rng.choice([0.5, 1.0, 3.0])) if rng.random() < share else None

    return Network(table, limit(0.3), limit(0.5), limit(0.3))


def assert_same_cluster(one: ClusterOutcome, other: ClusterOutcome) -> None:
    """Bit for bit: every array and number, of every replica and link."""
    for field in fields(ClusterOutcome):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, Outcome):
            assert_same(left, right)
        elif field.name in ("prefill", "decode"):
            assert len(left) == len(right)
            for position, (mine, yours) in enumerate(zip(left, right, strict=True)):
                assert_same_fields(f"{field.name}[{position}]", mine, yours)
        else:
            assert_equal(field.name, left, right)


def assert_same_fields(name: str, left: Any, right: Any) -> None:
    for field in fields(left):
        mine, yours = getattr(left, field.name), getattr(right, field.name)
        if field.name == "record" and mine is not None:
            assert_same_fields(f"{name}.record", mine, yours)
        else:
            assert_equal(f"{name}.{field.name}", mine, yours)
