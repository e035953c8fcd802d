"""What can be fitted to a traffic, part by part, and how each kind holds on the half that was held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.traffic.curves import WINDOWS_S, index_of_dispersion, interarrival_cv, prefix_hit_rate
from planner.traffic.dependence import rank_correlation
from planner.traffic.distances import ks_distance
from planner.traffic.errors import refuse
from planner.traffic.fitting.arrivals import fitted_arrivals
from planner.traffic.fitting.lengths import fitted_lengths
from planner.traffic.fitting.sessions import SessionFit, fitted_sessions, whole_blocks
from planner.traffic.generating.arrivals import ARRIVALS, Arrivals
from planner.traffic.generating.lengths import LENGTHS, Lengths
from planner.traffic.generating.model import SyntheticModel
from planner.traffic.generating.sessions import Sessions
from planner.traffic.model import Traffic

Pair = tuple[str, str]
"""A kind of arrivals and one of lengths."""
NEARLY, NEARLY_BY = 1.1, 0.02
#: What `simplest` goes by where no kind was asked for.
CRITERION = (
    f"the simplest kind whose score is at most {NEARLY:g} times the best one's and {NEARLY_BY:g} more; "
    "scores are distances on the held-out half, small is good"
)
FIT_PARTS = ("arrivals", "lengths", "sessions")
#: Kinds that sessions cannot have: they hold whole requests, and sessions are made of what is new in each.
NOT_IN_SESSIONS = {"arrivals": "replayed", "lengths": "empirical"}
SESSION_KINDS = {"none": "Requests on their own", "growing": Sessions.TITLE}
ORDER = (
    "none",
    "growing",
    "poisson",
    "gamma",
    "on_off",
    "diurnal",
    "replayed",
    "lognormal",
    "mixture",
    "empirical",
)  # simple first


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind on the held-out half: `score` is what is compared (small is good), `figures` what it is made of."""

    kind: str
    title: str
    score: float
    figures: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Parts:
    """What can be fitted to a traffic with one kind of sessions, by kind."""

    arrivals: dict[str, Arrivals]
    lengths: dict[str, Lengths]
    sessions: Sessions | None = None

    def model(self, process: str, law: str) -> SyntheticModel:
        return SyntheticModel(self.arrivals[process], self.lengths[law], self.sessions)

    def also_in(self, other: Parts) -> Parts:
        """Without the processes that the other has not: bursts of a half may be none of the whole."""
        shared = {kind: one for kind, one in self.arrivals.items() if kind in other.arrivals}
        return replace(self, arrivals=shared)

    @property
    def pairs(self) -> list[Pair]:
        """What is tried: each process with the plainest law there is, each law with the plainest process."""
        law = "empirical" if "empirical" in self.lengths else "lognormal"
        tried = [*((process, law) for process in self.arrivals), *(("poisson", law) for law in self.lengths)]
        return list(dict.fromkeys(tried))


def parts_of(traffic: Traffic, key: str) -> dict[str, Parts]:
    found = {"none": Parts(fitted_arrivals(traffic, key), fitted_lengths(traffic, key))}
    growing = fitted_sessions(traffic, key)
    if isinstance(growing, SessionFit):
        found["growing"] = Parts(growing.arrivals, growing.lengths, growing.sessions)
    return found


def to_try(first: Traffic, parts: dict[str, Parts], asked: Mapping[str, str]) -> dict[str, Parts]:
    """The kinds of sessions to try on `parts`, which are those of `first`. Kinds of arrivals or lengths that sessions
    do not have leave requests on their own, where sessions were not asked for. TrafficError for sessions that are asked
    for and cannot be fitted (field "sessions") or not with such a kind (that kind's field)."""
    sessions = asked.get("sessions", "")
    if sessions == "growing":
        for part, kind in NOT_IN_SESSIONS.items():
            if asked.get(part) == kind:
                raise refuse(not_in_sessions(kind), code="option", field=part)
    if sessions not in ("", *parts):
        known = sessions in SESSION_KINDS
        why = fitted_sessions(first, "") if known else f"there are {', '.join(SESSION_KINDS)}"
        message = (
            f"Sessions cannot be fitted to half of this traffic: {why}." if known else f"No such kind; {why}."
        )
        raise refuse(message, code="option", field="sessions")
    if sessions:
        return {sessions: parts[sessions]}
    wanted = {asked.get(part, "") for part in NOT_IN_SESSIONS}
    alone = bool(wanted & set(NOT_IN_SESSIONS.values()))
    return {kind: some for kind, some in parts.items() if kind == "none" or not alone}


def not_in_sessions(kind: str) -> str:
    return f"Sessions have no such kind: {kind} takes whole requests, and they are made of what is new in each turn."


@dataclass(frozen=True, slots=True)
class Tried:
    """One kind of sessions on the held-out half: the best model with it, and what it was chosen from."""

    candidate: Candidate
    arrivals: tuple[Candidate, ...]
    lengths: tuple[Candidate, ...]
    chosen: Pair
    synthetic: Traffic


def hold(
    kind: str,
    some: Parts,
    second: Traffic,
    made: Callable[[Parts, Pair], Traffic],
    wanted: Pair,
) -> Tried:
    """`second`: the held-out half; `made(some, pair)`: as many requests by a model of the other; `wanted`: the kinds
    asked for, or ""."""
    drawn = {pair: made(some, pair) for pair in some.pairs}
    law = some.pairs[0][1]
    of_arrivals = tuple(_arrivals(one, second, drawn[one, law]) for one in some.arrivals)
    of_lengths = tuple(_lengths(one, second, drawn["poisson", one]) for one in some.lengths)
    pair = (simplest(of_arrivals, wanted[0], "arrivals"), simplest(of_lengths, wanted[1], "lengths"))
    synthetic = drawn[pair] if pair in drawn else made(some, pair)
    gaps, texts = _arrivals(pair[0], second, synthetic), _lengths(pair[1], second, synthetic)
    held, found = (_hit_rate(one) for one in (second, synthetic))
    figures = {"hit_rate": found, "hit_rate_heldout": held, "ks_gaps": gaps.figures["ks_gaps"],
               "ks_prompt": texts.figures["ks_prompt"]}  # fmt: skip
    score = gaps.score + texts.score + abs(found - held)
    return Tried(
        Candidate(kind, SESSION_KINDS[kind], score, figures), of_arrivals, of_lengths, pair, synthetic
    )


def _hit_rate(traffic: Traffic) -> float:
    """What an endless cache would find of whole blocks; 0 where nothing says what prompts share."""
    hashes = whole_blocks(traffic)
    return 0.0 if hashes is None else prefix_hit_rate(hashes) or 0.0


def _arrivals(kind: str, second: Traffic, made: Traffic) -> Candidate:
    gaps = [np.diff(one.arrival_s) * (one.rate_per_s or 0.0) for one in (second, made)]
    figures: dict[str, float | None] = {"ks_gaps": ks_distance(*gaps), "cv": interarrival_cv(made.arrival_s)}
    errors = []
    for window_s in WINDOWS_S:
        if min(second.duration_s, made.duration_s) // window_s < 10:
            continue
        values = [index_of_dispersion(one.arrival_s, window_s) for one in (second, made)]
        figures[f"dispersion_{window_s:g}_s"] = values[1]
        if values[0] and values[1]:
            errors.append(abs(np.log(values[1] / values[0])))
    score = (figures["ks_gaps"] or 0.0) + (float(np.mean(errors)) if errors else 0.0)
    return Candidate(kind, ARRIVALS[kind].TITLE, score, figures)


def _lengths(kind: str, second: Traffic, made: Traffic) -> Candidate:
    figures: dict[str, float | None] = {
        "ks_prompt": ks_distance(second.prompt_tokens, made.prompt_tokens),
        "ks_output": ks_distance(second.output_tokens, made.output_tokens),
        "rank_correlation": rank_correlation(made.prompt_tokens, made.output_tokens),
    }
    score = (figures["ks_prompt"] or 0.0) + (figures["ks_output"] or 0.0)
    return Candidate(kind, LENGTHS[kind].TITLE, score, figures)


def simplest(candidates: tuple[Candidate, ...], wanted: str, field: str) -> str:
    if wanted:
        if wanted not in {one.kind for one in candidates}:
            known = ", ".join(one.kind for one in candidates)
            message = f"{wanted} cannot be fitted to this traffic; there are {known}."
            raise refuse(message, code="option", field=field)
        return wanted
    best = min(one.score for one in candidates)
    good = [one.kind for one in candidates if one.score <= NEARLY * best + NEARLY_BY]
    return min(good, key=ORDER.index)
