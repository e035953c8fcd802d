"""Why each other class of configurations lost: one replica less, other budgets, the other topology."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.search import ranking
from planner.search.engines import NAMES, budget_of, engine_of
from planner.search.fleet import ONE_KIND, Fleet
from planner.search.objectives import Objective
from planner.search.ranking import Option
from planner.search.seconds import seconds_text


@dataclass(frozen=True, slots=True)
class Lost:
    """A class of configurations, how many of it were tried, and why the choice is not among them."""

    what: str
    tried: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def why_lost(
    choice: Option,
    tried: Sequence[Option],
    objectives: Sequence[Objective],
    band: float,
    fleet: Fleet = ONE_KIND,
) -> tuple[Lost, ...]:
    found = [*_fewer(choice, tried, objectives, band), *_classes(choice, tried, objectives, band, fleet)]
    return (*found, *_budgets(choice, tried, objectives, fleet))


def _fewer(
    choice: Option, tried: Sequence[Option], objectives: Sequence[Objective], band: float
) -> Iterator[Lost]:
    fewer = choice.candidate.replicas - 1
    kinds = set(choice.candidate.kinds)
    here = [o for o in tried if o.candidate.replicas == fewer and set(o.candidate.kinds) == kinds]
    nearest = ranking.closest(here, objectives, band)
    if nearest is not None:
        reason = nearest.reason or "its margin is smaller"
        yield Lost(
            f"{fewer} replica{'s' if fewer > 1 else ''}",
            len(here),
            f"the closest, {_named(nearest)}: {reason}",
        )


def _named(option: Option) -> str:
    where = f"{option.candidate.replicas_text}, " if option.candidate.pools else ""
    return f"{where}{option.candidate.knobs_text}"


def _classes(
    choice: Option, tried: Sequence[Option], objectives: Sequence[Objective], band: float, fleet: Fleet
) -> Iterator[Lost]:
    """Every other deployment, with two kinds of hardware on each of them: at the cost of the choice, or the least that
    meets."""
    own = _class(choice)
    others: dict[object, list[Option]] = {}
    for option in tried:
        if _class(option) != own:
            others.setdefault(_class(option), []).append(option)
    for members in others.values():
        candidate = members[0].candidate
        where = f" on {fleet.where(candidate)}" if len(fleet.names) > 1 else ""
        said = _why(choice, members, objectives, band, one_kind=len(fleet.names) == 1)
        if said:
            yield Lost(f"{candidate.deployment}{where}", len(members), said)


def _class(option: Option) -> object:
    return option.candidate.deployment, option.candidate.kinds


def _why(
    choice: Option,
    members: Sequence[Option],
    objectives: Sequence[Objective],
    band: float,
    *,
    one_kind: bool,
) -> str:
    met = [option for option in members if option.status == "meets"]
    level = [option for option in members if option.cost == choice.cost]
    if not met:
        nearest = ranking.closest(level or members, objectives, band)
        return behind(nearest) if nearest else ""
    best = ranking.best_of(met, objectives, band)
    if best.cost > choice.cost:
        dearer = _dearer(choice, best, one_kind=one_kind)
        at_level = ranking.closest(level, objectives, band)
        same = f"on {choice.candidate.replicas}" if one_kind else "at the same cost"
        return f"{dearer}; {same} {behind(at_level)}" if at_level else dearer
    left, margin = best.margin(objectives), choice.margin(objectives)
    simpler = "replicas alike are simpler" if best.candidate.pools else "the choice is simpler"
    if best.warnings and not choice.warnings:
        simpler = f"the choice comes without a warning ({'; '.join(best.warnings)})"
    tie = f": a tie, and {simpler}" if abs(left - margin) <= band else ""
    if left - margin > band:
        tie = f": the choice holds as surely, and {simpler}"
    elif margin - left > band and best.warnings and not choice.warnings:
        tie = f", and comes with a warning ({'; '.join(best.warnings)})"
    return (
        f"meets the objectives too, with a worst margin of {100 * left:.3g} % against {100 * margin:.3g} %"
        f"{tie}; {behind(best)}"
    )


def _dearer(choice: Option, best: Option, *, one_kind: bool) -> str:
    if one_kind:
        more = best.candidate.replicas - choice.candidate.replicas
        return f"needs {more} more replica{'s' if more > 1 else ''}: {best.candidate.replicas_text}"
    times = f" ({best.cost / choice.cost:.3g} times as much)" if choice.cost else ""
    return f"costs more{times}: {best.candidate.replicas_text}"


def behind(option: Option) -> str:
    """What holds an option back: `1 prefill and 1 decode replica: TTFT p95 2.4 s > 2 s; decode pool idles 68 %`."""
    evaluation = option.evaluation
    said = [option.reason] if option.reason else []
    pools = [pool for pool in evaluation.pools if pool.role != "replica"]
    for pool in pools:
        said.append(f"{pool.role} pool idles {100 * pool.idle_share:.3g} %")
    if evaluation.transfer_adds_s:
        said.append(f"transfer adds {seconds_text(evaluation.transfer_adds_s)} to TTFT")
    return f"{option.candidate.replicas_text}: {'; '.join(said)}" if said else option.candidate.replicas_text


def _budgets(
    choice: Option, tried: Sequence[Option], objectives: Sequence[Objective], fleet: Fleet
) -> Iterator[Lost]:
    """Budgets of replicas alike, on as many replicas, of which every one breaks the same objective. Where the choice
    itself is something else, or other hardware was tried too, it is said of which replicas that holds."""
    kind = choice.candidate.kinds[-1]
    of = ""
    if choice.candidate.pools is not None or len(fleet.names) > 1:
        where = f" on {fleet.names[kind]}" if len(fleet.names) > 1 else ""
        many = choice.candidate.replicas
        of = f" of {many} replica{'s' if many > 1 else ''} alike{where}"
    level = [
        option
        for option in tried
        if option.candidate.pools is None
        and option.candidate.replicas == choice.candidate.replicas
        and option.candidate.kinds == (kind,)
        and option.evaluation.complete
    ]
    name = NAMES[engine_of(choice.candidate.knobs)][0]
    budgets = sorted({budget_of(option.candidate.knobs) for option in level})
    for o in objectives:
        broken = {
            budget
            for budget in budgets
            if all(
                option.evaluation.saturated or option.evaluation.values_s.get(o.key, 0.0) > o.limit_s
                for option in level
                if budget_of(option.candidate.knobs) == budget
            )
        }
        fine = [budget for budget in budgets if budget not in broken]
        if not fine or not broken:
            continue
        above, below = [b for b in broken if b > fine[-1]], [b for b in broken if b < fine[0]]
        for side, which, edge in (("above", above, fine[-1]), ("below", below, fine[0])):
            if which:
                count = sum(budget_of(option.candidate.knobs) in which for option in level)
                yield Lost(
                    f"{name} {side} {edge:,}{of}", count, f"{o.label} breaks at every one that was tried"
                )
