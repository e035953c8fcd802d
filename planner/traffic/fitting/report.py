"""Fit on one half, judge on the other.

The first half of the time is fitted, the second is held out: a model is judged by what it says of traffic that it has
not seen. How far the two halves are from each other is shown beside: no model can be expected to come nearer. Of the
kinds, the simplest is proposed that is nearly as good as the best (its score within a tenth and 0.02). The
model that is handed out is then fitted to all of the traffic. What prompts share is not fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from planner.traffic.comparison import Comparison, compare
from planner.traffic.curves import WINDOWS_S, index_of_dispersion, interarrival_cv, prefix_hit_rate
from planner.traffic.dependence import rank_correlation
from planner.traffic.distances import ks_distance
from planner.traffic.errors import refuse
from planner.traffic.fitting.arrivals import fitted_arrivals
from planner.traffic.fitting.lengths import fitted_lengths
from planner.traffic.generating.arrivals import ARRIVALS
from planner.traffic.generating.lengths import LENGTHS
from planner.traffic.generating.model import SyntheticModel, generate, parse_model
from planner.traffic.model import Traffic
from planner.traffic.shaping import Parent
from planner.traffic.shaping.arrays import take

FEWEST = 200
MOST = 400_000
SESSIONS = ("mooncake_sessions", "mooncake_agentic", "dynamo", "applied_compute")
NEARLY, NEARLY_BY = 1.1, 0.02
#: What `_chosen` goes by where no kind was asked for.
CRITERION = (
    f"the simplest kind whose score is at most {NEARLY:g} times the best one's and {NEARLY_BY:g} more; "
    "scores are distances on the held-out half, small is good"
)
ORDER = (
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
class FitReport:
    """`model` is fitted to all; the held-out half and what the model of the first half says of it are compared in
    `comparison`; `floor` compares the halves. `requests` of the traffic were used: the first ones of a larger one.
    `remarks` say what of the traffic is not in the model."""

    model: SyntheticModel
    arrivals: tuple[Candidate, ...]
    lengths: tuple[Candidate, ...]
    chosen: tuple[str, str]
    comparison: Comparison
    floor: Comparison
    requests: int
    seed: int
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.to_dict(), "chosen": {"arrivals": self.chosen[0], "lengths": self.chosen[1]},
            "arrivals": [asdict(one) for one in self.arrivals], "lengths": [asdict(one) for one in self.lengths],
            "heldout": self.comparison.to_dict(), "halves": self.floor.to_dict(), "requests": self.requests,
            "seed": self.seed, "remarks": list(self.remarks),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> FitReport:
        """Of what `to_dict` said."""
        arrivals, lengths = (
            tuple(Candidate(**one) for one in said[part]) for part in ("arrivals", "lengths")
        )
        return cls(
            parse_model(said["model"]), arrivals, lengths, (said["chosen"]["arrivals"], said["chosen"]["lengths"]),
            Comparison.from_dict(said["heldout"]), Comparison.from_dict(said["halves"]), said["requests"], said["seed"],
            tuple(said["remarks"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fit:
    """The report, and the two traffics that it compares."""

    report: FitReport
    heldout: Traffic
    synthetic: Traffic


def fit(
    parent: Parent,
    *,
    arrivals: str = "",
    lengths: str = "",
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> Fit:
    """The kinds named, or those that hold best on the second half. TrafficError for too few requests, or for a kind
    that does not fit this traffic (field "arrivals" or "lengths"). `on_step(done, total)` hears how far it is; what
    it raises ends the fit."""
    tell = on_step or (lambda done, total: None)
    traffic, first, second = _halves(parent.traffic)
    half = Parent(parent.id, parent.name, first)
    processes, laws = fitted_arrivals(first, parent.id), fitted_lengths(first, parent.id)
    if not processes:
        raise refuse("Arrivals of one instant have no rate to fit.", code="no_rate", field="traffic")
    pairs = [*((process, "empirical") for process in processes), *(("poisson", law) for law in laws)]
    made: dict[tuple[str, str], Traffic] = {}
    for number, (process, law) in enumerate(pairs, 1):
        tell(number, len(pairs) + 3)
        made[process, law] = generate(
            SyntheticModel(processes[process], laws[law]), requests=second.requests, seed=seed, others=[half]
        )
    of_arrivals = tuple(_arrivals(kind, second, made[kind, "empirical"]) for kind in processes)
    of_lengths = tuple(_lengths(kind, second, made["poisson", kind]) for kind in laws)
    process, law = _chosen(of_arrivals, arrivals, "arrivals"), _chosen(of_lengths, lengths, "lengths")
    synthetic = generate(
        SyntheticModel(processes[process], laws[law]), requests=second.requests, seed=seed, others=[half]
    )
    tell(len(pairs) + 1, len(pairs) + 3)
    everything = SyntheticModel(
        fitted_arrivals(traffic, parent.id)[process], fitted_lengths(traffic, parent.id)[law]
    )
    tell(len(pairs) + 2, len(pairs) + 3)
    report = FitReport(
        model=everything, arrivals=of_arrivals, lengths=of_lengths, chosen=(process, law),
        comparison=compare(second, synthetic, seed=seed), floor=compare(second, first, seed=seed),
        requests=traffic.requests, seed=seed, remarks=_not_fitted(parent.traffic),
    )  # fmt: skip
    return Fit(report, replace(second, source="held-out half"), synthetic)


def _not_fitted(traffic: Traffic) -> tuple[str, ...]:
    """What the traffic has that no part of the model was fitted to."""
    found = []
    if traffic.requests > MOST:
        found.append(f"The first {MOST:,} of its {traffic.requests:,} requests were used.")
    if traffic.format in SESSIONS:
        found.append(
            "Turns of its sessions are fitted as requests that come on their own: that one waits for another is not in "
            "the model, unless you add sessions to it."
        )
    if traffic.prefix_hashes is not None:
        share = prefix_hit_rate(traffic.prefix_hashes)
        of = f" ({100 * share:.3g} % of the blocks, with an endless cache)" if share is not None else ""
        found.append(
            f"What prompts share{of} is not fitted: the model has no prefix reuse, unless you add sessions."
        )
    if traffic.request_class is not None and len(traffic.class_names) > 1:
        found.append(
            f"Its {len(traffic.class_names)} classes were fitted as one law: shape a traffic of each and fit those to "
            "keep them apart."
        )
    if traffic.max_tokens is not None or traffic.priority is not None:
        found.append("Caps on the output (max_tokens) and priorities are not fitted.")
    return tuple(found)


def judged(parent: Parent, arrivals: str, lengths: str, seed: int = 0) -> tuple[Traffic, Traffic]:
    """The held-out half and what these kinds, fitted to the other, say of it: as in `fit`, without the rest."""
    _, first, second = _halves(parent.traffic)
    half = Parent(parent.id, parent.name, first)
    processes, laws = fitted_arrivals(first, parent.id), fitted_lengths(first, parent.id)
    for kind, known, field in ((arrivals, processes, "arrivals"), (lengths, laws, "lengths")):
        if kind not in known:
            raise refuse(f"There is no fit of this kind: {kind}.", code="option", field=field)
    model = SyntheticModel(processes[arrivals], laws[lengths])
    return second, generate(model, requests=second.requests, seed=seed, others=[half])


def _halves(traffic: Traffic) -> tuple[Traffic, Traffic, Traffic]:
    """All that is used, and its first and second half by time."""
    if traffic.requests > MOST:
        traffic = take(traffic, np.arange(MOST), "traffic")
    if traffic.requests < FEWEST:
        message = f"{traffic.requests:,} requests say too little; {FEWEST} are needed."
        raise refuse(message, code="too_few", field="traffic")
    middle = int(np.searchsorted(traffic.arrival_s, traffic.duration_s / 2))
    if min(middle, traffic.requests - middle) < FEWEST // 4:
        message = "Nearly all requests come in one half of the time: there is nothing to hold out."
        raise refuse(message, code="one_half", field="traffic")
    first = take(traffic, np.arange(middle), "traffic")
    return traffic, first, take(traffic, np.arange(middle, traffic.requests), "traffic")


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


def _chosen(candidates: tuple[Candidate, ...], wanted: str, field: str) -> str:
    if wanted:
        if wanted not in {one.kind for one in candidates}:
            known = ", ".join(one.kind for one in candidates)
            message = f"{wanted} cannot be fitted to this traffic; there are {known}."
            raise refuse(message, code="option", field=field)
        return wanted
    best = min(one.score for one in candidates)
    good = [one.kind for one in candidates if one.score <= NEARLY * best + NEARLY_BY]
    return min(good, key=ORDER.index)
