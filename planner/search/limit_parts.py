"""The limits of objectives one by one, each of which can be moved: a percentile's own, and of a joint objective one for
each of its metrics. Seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.search.objectives import Latency, Objective


@dataclass(frozen=True, slots=True)
class LimitPart:
    """Of the objective at position `of`; `metric` None: its only limit."""

    of: int
    metric: Latency | None
    label: str
    limit_s: float

    @property
    def name(self) -> str:
        """`limit_ms_0`, `limit_ms_1_ttft`: the field of a form."""
        return f"limit_ms_{self.of}{f'_{self.metric}' if self.metric else ''}"


def limit_parts(objectives: Sequence[Objective]) -> tuple[LimitPart, ...]:
    found: list[LimitPart] = []
    for position, o in enumerate(objectives):
        if not o.is_joint:
            found.append(LimitPart(position, None, o.label, o.limit_s))
        found += [LimitPart(position, m, f"{o.label}, {m.upper()}", limit) for m, limit in o.limits]
    return tuple(found)


def with_limits(objectives: Sequence[Objective], limits_s: Sequence[float]) -> tuple[Objective, ...]:
    """The objectives with other limits, in the order of `limit_parts`. Raises ObjectiveError."""
    moved = list(objectives)
    for part, limit_s in zip(limit_parts(objectives), limits_s, strict=True):
        own = moved[part.of]
        if part.metric is None:
            moved[part.of] = replace(own, limit_s=limit_s)
        else:
            limits = tuple((m, limit_s if m == part.metric else limit) for m, limit in own.limits)
            moved[part.of] = replace(own, limits=limits)
    return tuple(moved)
