"""What stands where by the options of `manage.py simulate`: knobs of each pool, links, the prefix pool, classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from calibration.steptime import StepTimeArrays
from calibration.transfer import TransferTable
from planner.simulate_options import DEFAULT_HAND_OFF, HAND_OFFS, SimulateError, read_by_class, read_knobs
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PULL,
    PUSH_CHUNKS,
    ROUND_ROBIN,
    Aggregated,
    Deployment,
    Disaggregated,
    HandOff,
    Network,
    PrefixPool,
    RequestClass,
    pool,
)
from planner.simulation.knobs import Knobs
from planner.traffic import Traffic

WAYS: Final = {PULL: HandOff.vllm, AFTER_PREFILL: HandOff.tensorrt_llm, PUSH_CHUNKS: HandOff.sglang}
NEEDS_CACHE: Final = "needs a prefix cache: --knobs prefix_caching=on"


def knobs_of(
    options: Mapping[str, Any], kv_tokens: Callable[[int], int], longest_request: int
) -> tuple[Knobs, Knobs]:
    """Of the prefill and of the decode pool; the same twice where there is one pool."""
    both = {"--knobs": options["knobs"]}
    prefill, decode = (
        read_knobs(options["engine"], both | own, kv_tokens, longest_request)
        for own in (
            {"--prefill-knobs": options["prefill_knobs"]},
            {"--decode-knobs": options["decode_knobs"]},
        )
    )
    if options["prefill"] is None:
        return decode, decode
    if prefill.profile.drafts:
        raise SimulateError(
            "--prefill-knobs" if "num_speculative_tokens" in (options["prefill_knobs"] or "") else "--knobs",
            "speculative decoding is simulated in the decode pool only: give it with --decode-knobs",
        )
    sizes = {knobs.profile.block_size for knobs in (prefill, decode) if knobs.profile.caching}
    if len(sizes) > 1:
        raise SimulateError("--decode-knobs", "pools that cache prefixes need blocks of one size")
    return prefill, decode


def deployment_of(
    options: Mapping[str, Any],
    knobs: tuple[Knobs, Knobs],
    step_time: StepTimeArrays,
    kv_bytes_per_token: float,
    measured: tuple[TransferTable, ...],
    traffic: Traffic,
) -> Deployment | None:
    """None: one replica that needs no cluster. `measured`: the calibration's transfers."""
    gap_s = (options["host_gap_ms"] or 0.0) / 1000.0
    prefill, decode = knobs
    router, shared = (
        options["router"] or ROUND_ROBIN,
        _prefix_pool(options, knobs, kv_bytes_per_token, traffic),
    )
    if options["prefill"] is None:
        replicas = options["replicas"] or 1
        if replicas == 1 and shared is None:
            return None
        return Aggregated(pool(replicas, decode, step_time, gap_s), router, prefix_pool=shared)
    way = WAYS[options["hand_off"] or HAND_OFFS.get(options["engine"], DEFAULT_HAND_OFF)]
    return Disaggregated(
        pool(options["prefill"], prefill, step_time, gap_s),
        pool(options["decode"], decode, step_time, gap_s),
        way(kv_bytes_per_token, options["message_s"] or 0.0),
        Network.cards(_transfers(options, measured)),
        router,
        router,
        options["local_prefill_tokens"] or 0,
        prefix_pool=shared,
    )


def _transfers(options: Mapping[str, Any], measured: tuple[TransferTable, ...]) -> TransferTable:
    """The link that was described, or the first that was measured with the calibration."""
    if options["link_gb_per_s"] is not None:
        return _link("--link-gb-per-s", options["link_gb_per_s"], options["link_latency_s"])
    if not measured:
        raise SimulateError("--link-gb-per-s", "say how fast KV caches move: the calibration measured none")
    return measured[0]


def _link(option: str, gb_per_s: float, latency_s: float | None) -> TransferTable:
    try:
        return TransferTable.link(gb_per_s, latency_s or 0.0, 0.0)
    except ValueError as error:
        raise SimulateError(option, str(error)) from error


def _prefix_pool(
    options: Mapping[str, Any], knobs: tuple[Knobs, Knobs], kv_bytes_per_token: float, traffic: Traffic
) -> PrefixPool | None:
    option, gb_per_s = "--prefix-pool-gb-per-s", options["prefix_pool_gb_per_s"]
    if gb_per_s is None:
        return None
    if not any(one.profile.caching for one in knobs):
        raise SimulateError(option, NEEDS_CACHE)
    if traffic.prefix_hashes is None or traffic.prefix_hashes.block_tokens is None:
        raise SimulateError(option, "the traffic does not say which prompts begin alike")
    table = _link(option, gb_per_s, options["prefix_pool_latency_s"])
    return PrefixPool(table, gb_per_s * 1e9, kv_bytes_per_token, options["prefix_pool_blocks"])


def classes_of(
    options: Mapping[str, Any], traffic: Traffic, knobs: tuple[Knobs, Knobs]
) -> tuple[RequestClass, ...]:
    """Empty where no class has a priority or a limit of its own."""
    names = traffic.class_names
    priorities = read_by_class("--class-priority", options["class_priority"], names, int)
    limits = read_by_class("--class-ttft-limit-s", options["class_ttft_limit_s"], names, float)
    if priorities and not any(one.profile.by_priority for one in knobs):
        raise SimulateError(
            "--class-priority", "needs an engine that schedules by it: vllm, --knobs policy=priority"
        )
    if priorities and traffic.priority is not None:
        raise SimulateError("--class-priority", "the traffic has a priority for each request")
    if any(limit <= 0 for limit in limits.values()):
        raise SimulateError("--class-ttft-limit-s", "must be above 0")
    if not priorities and not limits:
        return ()
    return tuple(RequestClass(name, priorities.get(name, 0), limits.get(name)) for name in names)
