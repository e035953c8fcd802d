"""What a plan would do nothing with, or its traffic cannot have: said beside the field, before a job starts.

A number that changes nothing is refused rather than dropped, because whoever gave it believes that it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner import services
from planner.models import TrafficSet
from planner.search import TITLES, Conditions, Objective, ObjectiveError, SearchSpace
from planner.search.class_gaps import MAX_RECORDED_TOKENS
from planner.search.engines import HAND_OFFS, NAMES
from planner.search.requests import check_classes
from planner.simulation.cluster.deployment import PREFIX_AWARE, PUSH_CHUNKS, ROUND_ROBIN
from planner.traffic import Traffic

Errors = Iterator[tuple[str, str]]

#: Fields that only say something of a link, or of the pools it joins.
OF_A_LINK = (
    "link_latency_s",
    "link_uncertainty",
    "message_s",
    "transfer_chunks_tokens",
    "local_prefill_tokens",
)


#: Fields that only say something of a second kind of hardware.
OF_THE_SECOND = ("second_price_per_gpu_hour", "second_gpus_per_replica", "second_max_gpus")


def hardware_errors(asked: Mapping[str, Any], conditions: Conditions) -> Errors:
    """Two kinds of hardware run the same model, and their prices can be compared."""
    first, second = asked["calibration"], asked.get("second_calibration")
    if conditions.max_gpus is not None and conditions.max_gpus < conditions.gpus_per_replica:
        yield "max_gpus", f"One replica has {conditions.gpus_per_replica:,}."
    if second is None:
        for name in OF_THE_SECOND:
            if name in asked:
                yield name, "Goes with a second calibration: choose one."
        return
    if second.pk == first.pk:
        yield "second_calibration", "Choose another one than the first."
    elif second.project_id != first.project_id:
        yield "second_calibration", "It belongs to another project than the first."
    elif second.architecture != first.architecture:
        yield (
            "second_calibration",
            "It is of another model than the first: pools hand over KV caches of one model.",
        )
    if (
        conditions.second_max_gpus is not None
        and conditions.second_max_gpus < conditions.second_gpus_per_replica
    ):
        yield "second_max_gpus", f"One replica has {conditions.second_gpus_per_replica:,}."
    if conditions.price_per_gpu_hour is not None and conditions.second_price_per_gpu_hour is None:
        yield "second_price_per_gpu_hour", "Give both prices, or none."


def unused_errors(asked: Mapping[str, Any], conditions: Conditions, space: SearchSpace) -> Errors:
    """`asked`: the fields that were filled in with something else than their default."""
    title = TITLES[conditions.engine]
    if conditions.link is None:
        for name in OF_A_LINK:
            if name in asked:
                yield name, "Goes with a link between pools: give its speed, or choose the measured one."
    elif asked.get("link") == "measured":
        for name in ("link_gb_per_s", "link_latency_s", "link_uncertainty"):
            if name in asked:
                yield name, "Goes with an entered link; the one measured with the calibration was chosen."
    if conditions.link is not None and space.max_replicas < 2:
        yield "max_replicas", "Separate pools need at least 2 replicas: allow more, or leave the link out."
    looking = [router for router in space.routers if router != ROUND_ROBIN]
    if looking and space.max_replicas < 2:
        yield "routers", "One replica needs no router: allow more, or leave it out."
    if PREFIX_AWARE in looking and conditions.prefix != "trace":
        yield "routers", f"{PREFIX_AWARE} follows the traffic's own hashes: choose them as the prefix cache."
    if "transfer_chunks_tokens" in asked and PUSH_CHUNKS not in HAND_OFFS[conditions.engine]:
        yield "transfer_chunks_tokens", f"{title} hands KV caches over whole."
    if asked.get("chunk_caps_tokens", (0,)) != (0,) and not NAMES[conditions.engine][2]:
        yield "chunk_caps_tokens", f"{title} has no cap on a chunk beside its budget."


def traffic_errors(traffic: TrafficSet, conditions: Conditions, objectives: Sequence[Objective]) -> Errors:
    """What these requests cannot have."""
    figures = traffic.statistics
    if conditions.prefix == "trace" and figures.get("prefix_hit_rate") is None:
        yield (
            "prefix_hits",
            "The traffic does not say which prompts begin alike: assume a share of hits instead.",
        )
    try:
        check_classes(
            (o.request_class for o in objectives if o.request_class), list(figures.get("classes") or ())
        )
    except ObjectiveError as error:
        yield "objectives", error.message
        return
    classed = any(o.request_class for o in objectives)
    gaps = [o for o in objectives if o.metric in ("itl", "tpot")]
    if gaps and not figures["tpot_requests"]:
        yield "objectives", f"{gaps[0].label}: no request has a second token, so there are no gaps."
        return
    if conditions.window_s is None and conditions.assumed_max_tokens is None and not classed:
        return
    arrays = services.traffic_of(traffic)
    inside = _inside(arrays, conditions.window_s)
    if not inside.any() and conditions.window_s is not None:
        start, end = conditions.window_s
        yield (
            "window_start_s",
            f"No request arrives from {start:g} s to {end:g} s: the traffic lasts {figures['duration_s']:,.6g} s.",
        )
    elif nobody := _for_nobody(arrays, inside, objectives):
        yield "objectives", f"{nobody}{'' if conditions.window_s is None else ' in the window'}."
    if conditions.assumed_max_tokens is not None and arrays.max_tokens is not None:
        yield "assumed_max_tokens", "The traffic has the clients' own limits, which count."
    tokens = int(arrays.output_tokens[inside].sum())
    if classed and tokens > MAX_RECORDED_TOKENS and any(o.metric == "itl" for o in objectives):
        yield (
            "objectives",
            f"Gaps of single classes are told apart for up to {MAX_RECORDED_TOKENS:,} output tokens, and there are "
            f"{tokens:,}: limit TPOT or goodput instead, or take a window of the traffic.",
        )


def _inside(traffic: Traffic, window_s: tuple[float, float] | None) -> NDArray[np.bool_]:
    """Which requests arrive in the window."""
    if window_s is None:
        return np.ones(traffic.requests, dtype=np.bool_)
    inside: NDArray[np.bool_] = (traffic.arrival_s >= window_s[0]) & (traffic.arrival_s < window_s[1])
    return inside


def _for_nobody(traffic: Traffic, inside: NDArray[np.bool_], objectives: Sequence[Objective]) -> str:
    """The first objective that no request inside can have a value for, and why; "" where all have some."""
    of = {}
    if traffic.request_class is not None:
        of = {name: traffic.request_class == number for number, name in enumerate(traffic.class_names)}
    rest = inside.copy()
    for name in {o.request_class for o in objectives if o.request_class is not None}:
        rest &= ~of[name]
    for o in objectives:
        whose = rest if o.request_class is None else inside & of[o.request_class]
        if not whose.any():
            why = (
                "every class has objectives of its own"
                if o.request_class is None
                else "no request is of this class"
            )
            return f"{o.label} is for nobody: {why}"
        if o.metric in ("itl", "tpot") and not (whose & (traffic.output_tokens > 1)).any():
            return f"{o.label}: no request has a second token, so there are no gaps"
    return ""
