"""Where a setting can go: the steps of each slider, and the settings one step of one knob away.

Steps are round numbers around where the plan stands: half octaves of tokens and octaves of sequences inside what was
measured, a geometric scale for rates, limits and speeds. Any value between can be asked for as well; the steps are
what a slider stops at and what "one step" means.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from planner.search.engines import NAMES
from planner.search.limit_parts import limit_parts
from planner.search.what_if import Reopened, Setting

LEAST_TOKENS: Final = 16
MOST_REPLICAS: Final = 256
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Steps:
    """Rising values of each slider; empty for what the engine has not. No cap (0) is the loosest, so it is last."""

    rate_multiplier: tuple[float, ...]
    limits_s: tuple[tuple[float, ...], ...]  # as limit_parts
    budget_tokens: tuple[int, ...]
    chunk_cap_tokens: tuple[int, ...]
    max_num_seqs: tuple[int, ...]
    replicas: tuple[int, ...]
    prefill_replicas: tuple[int, ...]
    link_gb_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """`knob`: a field of `Setting`, moved from `before` to `after`."""

    knob: str
    before: int
    after: int
    setting: Setting


def steps_of(subject: Reopened) -> Steps:
    start, space, kinds = subject.start, subject.space, subject.shown.kinds
    sizing, seating = (
        subject.holds[kind].bounds for kind in (kinds[0], kinds[-1])
    )  # of two pools prefill, decode
    halves = {m << k for m in (1, 3) for k in range(21)}
    tokens = {v for v in halves if LEAST_TOKENS <= v <= sizing.step_tokens}
    caps = {v for v in tokens if v & (v - 1) == 0} | {*space.chunk_caps_tokens, start.chunk_cap_tokens}
    seqs = {1 << k for k in range(21) if 1 << k <= seating.batch}
    most = min(MOST_REPLICAS, max(space.max_replicas, 2 * start.replicas, 4))
    has_cap = bool(NAMES[subject.conditions.engine][2])
    return Steps(
        rate_multiplier=_around(start.rate_multiplier, octaves=2, each=8),
        limits_s=tuple(_around(p.limit_s, octaves=3, each=6) for p in limit_parts(start.objectives)),
        budget_tokens=tuple(sorted(tokens | set(space.budgets_tokens) | {start.budget_tokens})),
        chunk_cap_tokens=(*sorted(caps - {0}), 0) if has_cap else (),
        max_num_seqs=tuple(sorted(seqs | set(space.max_num_seqs) | {start.max_num_seqs})),
        replicas=tuple(range(1, max(most, start.replicas) + 1)),
        prefill_replicas=tuple(range(max(most, start.replicas))),
        link_gb_per_s=_around(start.link_gb_per_s or 25.0, octaves=4, each=4),
    )


def _around(middle: float, *, octaves: int, each: int) -> tuple[float, ...]:
    """`middle` itself, and round values up to 2^`octaves` times and below it, `each` to an octave."""
    some = {
        float(f"{middle * 2 ** (k / each):.{_DIGITS}g}") for k in range(-octaves * each, octaves * each + 1)
    }
    close = {value for value in some if abs(value / middle - 1.0) < 10**-_DIGITS}
    return tuple(sorted((some - close) | {middle}))


def neighbours(subject: Reopened, setting: Setting, steps: Steps | None = None) -> Iterator[Neighbour]:
    """One step down and one up of each knob: budget, cap, sequences, replicas, and of two pools the split."""
    there = steps or steps_of(subject)
    for knob in ("budget_tokens", "chunk_cap_tokens", "max_num_seqs", "replicas", "prefill_replicas"):
        before: int = getattr(setting, knob)
        if knob == "prefill_replicas" and not before:
            continue
        values: Sequence[int] = getattr(there, knob)
        if knob == "chunk_cap_tokens":  # one that never binds is no step
            values = [cap for cap in values if cap < setting.budget_tokens]
        for after in _beside(values, before):
            change: dict[str, Any] = {knob: after}
            moved = replace(setting, **change)
            if (
                not setting.prefill_replicas or 0 < moved.prefill_replicas < moved.replicas
            ):  # pools stay pools
                yield Neighbour(knob, before, after, moved)


def _beside(values: Sequence[int], own: int) -> list[int]:
    """The next value below and the next above, as far as there are any; 0 at the end is more than all others."""

    def size(value: int) -> float:
        return math.inf if value == 0 and values[-1] == 0 else value

    sizes = [size(value) for value in values]
    low, high = bisect_left(sizes, size(own)), bisect_right(sizes, size(own))
    return [values[i] for i in (low - 1, high) if 0 <= i < len(values)]
