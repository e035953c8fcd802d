"""Fit on one half, judge on the other.

The first half of the time is fitted, the second is held out: a model is judged by what it says of traffic that it has
not seen. How far the two halves are from each other is shown beside: no model can be expected to come nearer. Of the
kinds, the simplest is proposed that is nearly as good as the best (its score within a tenth and 0.02). The
model that is handed out is then fitted to all of the traffic. Where prompts share blocks, sessions are fitted too and
kept by the same rule, where what a cache would find on the held-out half counts too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from planner.traffic.comparison import Comparison, compare
from planner.traffic.curves import prefix_hit_rate
from planner.traffic.errors import refuse
from planner.traffic.fitting.trying import FIT_PARTS, Candidate, Pair, Parts, hold, parts_of, simplest, to_try
from planner.traffic.generating.model import SyntheticModel, generate, parse_model
from planner.traffic.model import Traffic
from planner.traffic.shaping import Parent
from planner.traffic.shaping.arrays import take

FEWEST = 200
MOST = 400_000
FAR_OFF = 0.1  # of all blocks: more that the model's prompts share, or fewer, is told
SESSIONS = ("mooncake_sessions", "mooncake_agentic", "dynamo", "applied_compute")


@dataclass(frozen=True, slots=True)
class FitReport:
    """`model` is fitted to all; the held-out half and what the model of the first half says of it are compared in
    `comparison`; `floor` compares the halves. `requests` of the traffic were used: the first ones of a larger one.
    `remarks` say what of the traffic is not in the model."""

    model: SyntheticModel
    arrivals: tuple[Candidate, ...]
    lengths: tuple[Candidate, ...]
    sessions: tuple[Candidate, ...]  # empty where the prompts' hashes show none
    chosen: tuple[str, str, str]
    comparison: Comparison
    floor: Comparison
    requests: int
    seed: int
    remarks: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[tuple[str, tuple[Candidate, ...], str], ...]:
        """Part, what was tried of it, and the kind chosen; parts of which nothing was tried are left out."""
        tried = (self.arrivals, self.lengths, self.sessions)
        return tuple(one for one in zip(FIT_PARTS, tried, self.chosen, strict=True) if one[1])

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.to_dict(), "chosen": dict(zip(FIT_PARTS, self.chosen, strict=True)),
            "arrivals": [asdict(one) for one in self.arrivals], "lengths": [asdict(one) for one in self.lengths],
            "sessions": [asdict(one) for one in self.sessions],
            "heldout": self.comparison.to_dict(), "halves": self.floor.to_dict(), "requests": self.requests,
            "seed": self.seed, "remarks": list(self.remarks),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> FitReport:
        """Of what `to_dict` said; before sessions were fitted it said nothing of them."""
        arrivals, lengths, sessions = (
            tuple(Candidate(**one) for one in said.get(part, ())) for part in FIT_PARTS
        )
        chosen = said["chosen"]
        return cls(
            parse_model(said["model"]), arrivals, lengths, sessions,
            (chosen["arrivals"], chosen["lengths"], chosen.get("sessions", "none")),
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
    sessions: str = "",
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> Fit:
    """The kinds named, or those that hold best on the second half. TrafficError for too few requests, or for a kind
    that does not fit this traffic (field "arrivals", "lengths" or "sessions"). `on_step(done, total)` hears how far it
    is; what it raises ends the fit."""
    traffic, first, second = _halves(parent.traffic)
    half = Parent(parent.id, parent.name, first)
    whole, parts = (parts_of(one, parent.id) for one in (traffic, first))
    parts = {kind: some.also_in(whole[kind]) for kind, some in parts.items() if kind in whole}
    if not parts["none"].arrivals:
        raise refuse(
            "Half of it comes at one instant: there is no rate to fit.", code="no_rate", field="traffic"
        )
    wanted = to_try(first, parts, {"arrivals": arrivals, "lengths": lengths, "sessions": sessions})
    total, done = sum(len(some.pairs) for some in wanted.values()) + 2, 0

    def made(some: Parts, pair: Pair) -> Traffic:
        nonlocal done
        done = min(done + 1, total - 2)
        if on_step is not None:
            on_step(done, total)
        return generate(some.model(*pair), requests=second.requests, seed=seed, others=[half])

    tried = [hold(kind, some, second, made, (arrivals, lengths)) for kind, some in wanted.items()]
    kind = simplest(tuple(one.candidate for one in tried), "", "sessions")
    best = next(one for one in tried if one.candidate.kind == kind)
    if on_step is not None:
        on_step(total - 1, total)
    report = FitReport(
        model=whole[kind].model(*best.chosen), arrivals=best.arrivals, lengths=best.lengths,
        sessions=tuple(one.candidate for one in tried) if len(parts) > 1 else (), chosen=(*best.chosen, kind),
        comparison=compare(second, best.synthetic, seed=seed), floor=compare(second, first, seed=seed),
        requests=traffic.requests, seed=seed, remarks=_not_fitted(parent.traffic, best.candidate, len(tried) > 1),
    )  # fmt: skip
    return Fit(report, replace(second, source="held-out half"), best.synthetic)


def _not_fitted(traffic: Traffic, sessions: Candidate, others: bool) -> tuple[str, ...]:
    """What the traffic has that no part of the model was fitted to, or that its sessions do not bring. `others`: other
    kinds of sessions were tried."""
    found = []
    alone = sessions.kind == "none"
    held, brought = sessions.figures["hit_rate_heldout"] or 0.0, sessions.figures["hit_rate"] or 0.0
    if traffic.requests > MOST:
        found.append(f"The first {MOST:,} of its {traffic.requests:,} requests were used.")
    if traffic.format in SESSIONS and alone:
        found.append(
            "Turns of its sessions are fitted as requests that come on their own: that one waits for another is not in "
            "the model, unless you add sessions to it."
        )
    if traffic.prefix_hashes is not None and alone:
        share = prefix_hit_rate(traffic.prefix_hashes)
        of = f" ({100 * share:.3g} % of the blocks, with an endless cache)" if share is not None else ""
        unless = "those that were fitted hold no better" if others else "unless you add sessions"
        found.append(f"What prompts share{of} is not in the model: it has no prefix reuse, {unless}.")
    if not alone and abs(held - brought) > FAR_OFF:
        found.append(
            f"An endless cache finds {100 * held:.3g} % of the held-out half's whole blocks and {100 * brought:.3g} % "
            "of the model's: what prompts share is more than its sessions say, or less."
        )
    if traffic.request_class is not None and len(traffic.class_names) > 1:
        found.append(
            f"Its {len(traffic.class_names)} classes were fitted as one law: shape a traffic of each and fit those to "
            "keep them apart."
        )
    if traffic.max_tokens is not None or traffic.priority is not None:
        found.append("Caps on the output (max_tokens) and priorities are not fitted.")
    return tuple(found)


def judged(
    parent: Parent, arrivals: str, lengths: str, sessions: str = "none", seed: int = 0
) -> tuple[Traffic, Traffic]:
    """The held-out half and what these kinds, fitted to the other, say of it: as in `fit`, without the rest."""
    _, first, second = _halves(parent.traffic)
    half = Parent(parent.id, parent.name, first)
    asked = {"arrivals": arrivals, "lengths": lengths, "sessions": sessions}
    some = to_try(first, parts_of(first, parent.id), asked)[sessions]
    for kind, known, field in ((arrivals, some.arrivals, "arrivals"), (lengths, some.lengths, "lengths")):
        if kind not in known:
            raise refuse(f"There is no fit of this kind: {kind}.", code="option", field=field)
    return second, generate(some.model(arrivals, lengths), requests=second.requests, seed=seed, others=[half])


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
