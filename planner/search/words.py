"""The verdict in words: one sentence, and the remarks that a reader needs beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.search.evaluate import MAX_UNCOVERED_SHARE, seconds_text
from planner.search.ladder import Climbed
from planner.search.objectives import Objective
from planner.search.result import Excluded, Finalist, Prediction
from planner.search.space import Combination, knobs_text
from planner.simulation.saturation import LEAST_REQUESTS


def meets_sentence(choice: Finalist, subject: str, excluded: int = 0) -> str:
    """`2 replicas of M on D with ... meet TTFT p95 <= 2 s (predicted 1.61 s) and ...[, 3 requests left out]`."""
    replicas = choice.candidate.replicas
    verb = "meets" if replicas == 1 else "meet"
    goals = _joined([_goal(p) for p in choice.predictions])
    deployment = f"{_deployment(replicas, subject)} with {knobs_text(choice.candidate.knobs)}"
    return f"{deployment} {verb} {goals}{_left_out(excluded)}."


def _left_out(excluded: int) -> str:
    if not excluded:
        return ""
    return f", not counting {excluded:,} request{'s' if excluded > 1 else ''} that can never finish"


def fails_sentence(
    closest: Finalist | None,
    binding: Objective | None,
    subject: str,
    max_replicas: int,
    never_tried: Sequence[Combination],
    impossible: bool,
    alone_s: Mapping[str, float] | None,
) -> str:
    """`No configuration meets this: ...` with the binding objective, the closest candidate and what would help."""
    start = "No configuration meets this: "
    if closest is None or binding is None:
        reason = never_tried[0].reason if never_tried else "the space is empty"
        return f"{start}none of {len(never_tried)} combinations can be tried, because {reason}."
    goal = f"{binding.label} <= {seconds_text(binding.limit_s)}"
    where = f"{_deployment(closest.candidate.replicas, subject)} with {knobs_text(closest.candidate.knobs)}"
    alone = (alone_s or {}).get(binding.key)
    if impossible and alone is not None:
        return (
            f"{start}{goal} is impossible for a single request, because even alone on a replica of {subject} "
            f"it takes {seconds_text(alone)}."
        )
    if closest.status == "saturated":
        what = f"{where}, is still saturated"
    elif closest.status == "not covered":
        what = f"{where}, is not covered by the calibration: {closest.reason}"
    else:
        missed = next((p for p in closest.predictions if p.objective.key == binding.key), None)
        reached = "" if missed is None or missed.predicted_s is None else seconds_text(missed.predicted_s)
        what = f"{where}, reaches {reached}"
    hint = ""
    if alone is not None and alone <= binding.limit_s and closest.status != "not covered":
        hint = f"; alone on a replica a request sees {seconds_text(alone)}, so more replicas may do"
    limit = f"up to {max_replicas} replicas" if max_replicas > 1 else "1 replica"
    return f"{start}with {limit} {goal} fails; the closest, {what}{hint}."


def remarks(
    finalist: Finalist | None,
    climbed: Climbed,
    excluded: Excluded,
    requests: int,
    repeats: int,
    tied: int,
    band: float,
    complete: bool,
) -> tuple[str, ...]:
    """What qualifies the answer: exclusions, unclaimed percentiles, thin margins, assumptions."""
    found: list[str] = []
    if not complete:
        found.append("The search was stopped: this is the best of what had been tried.")
    if excluded.count:
        plural = "requests need" if excluded.count > 1 else "request needs"
        found.append(
            f"{excluded.count:,} {plural} more than max_model_len {excluded.max_model_len:,} tokens (prompt and "
            "output) and could never finish: excluded from the simulation, never truncated."
        )
    if finalist is not None:
        found += _about(finalist, band)
        if requests // finalist.candidate.replicas < LEAST_REQUESTS:
            found.append(
                f"A replica gets fewer than {LEAST_REQUESTS} requests: too few to tell whether it could sustain this "
                "load for longer than the trace lasts."
            )
        if tied:
            found.append(
                f"{tied} other combination{'s' if tied > 1 else ''} on as many replicas cannot be told from it: "
                f"the worst margins differ by less than {100 * band:.2g} % of the limit, the error of the step-time "
                "model. The one nearest to vLLM's defaults is shown."
            )
    uncovered = sum(1 for climb in climbed.climbs if climb.last and climb.last.status == "not covered")
    if uncovered:
        found.append(
            f"{uncovered} combination{'s' if uncovered > 1 else ''} spent more than "
            f"{100 * MAX_UNCOVERED_SHARE:g} % of busy time outside the calibrated region and cannot be judged."
        )
    if repeats:
        found.append(
            f"{repeats} combinations with a chunk cap at or above the budget repeat the uncapped one and are not "
            "listed."
        )
    found.append(
        "Assumed: prefix caching gives no hits, front end and network take 0 s, requests are dealt to replicas in "
        "turn."
    )
    return tuple(found)


def _about(finalist: Finalist, band: float) -> list[str]:
    found: list[str] = []
    for p in finalist.predictions:
        o = p.objective
        if not o.claimable(p.samples, p.requests):
            found.append(
                f"{o.label} is not claimed: {p.samples:,} samples of {p.requests:,} requests are too few for it "
                f"({o.samples_needed:,} samples needed)."
            )
        if p.margin is not None and abs(p.margin) <= band:
            found.append(
                f"{o.label} is within {100 * band:.2g} % of its limit, less than the error of the step-time model: "
                "it could fall on either side."
            )
    if finalist.refits and (finalist.status == "meets" or finalist.holding):
        found.append(
            f"With {finalist.holding} of {finalist.refits} refits of the step-time model all objectives hold."
        )
    return [*found, *finalist.warnings]


def _deployment(replicas: int, subject: str) -> str:
    return f"{replicas} replica{'s' if replicas > 1 else ''} of {subject}"


def _goal(p: Prediction) -> str:
    o = p.objective
    goal = f"{o.label} <= {seconds_text(o.limit_s)}"
    if p.predicted_s is None:
        return f"{goal} (no request has a second token: not claimed)"
    plural = "request" if p.requests == 1 else "requests"
    claim = "" if p.claimed else f", not claimed: only {p.requests:,} {plural}"
    return f"{goal} (predicted {seconds_text(p.predicted_s)}{claim})"


def _joined(parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
