"""The verdict in words: one sentence, and the remarks that a reader needs beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.search.combinations import Combination
from planner.search.conditions import Conditions
from planner.search.engines import TITLES
from planner.search.evaluate import BY_NEAREST, MAX_UNCOVERED_SHARE
from planner.search.ladder import Climbed
from planner.search.objectives import GOODPUT, Objective, label_of_key
from planner.search.relief import Relief
from planner.search.result import Excluded, Finalist, Prediction
from planner.search.seconds import seconds_text, three_digits
from planner.simulation.cluster.deployment import LEAST_TOKENS, PREFIX_AWARE, ROUND_ROBIN
from planner.simulation.saturation import LEAST_REQUESTS
from planner.unjudged import UNJUDGED

ROUTED = {
    ROUND_ROBIN: "requests are dealt to replicas in turn",
    LEAST_TOKENS: "requests go to the replica with the least outstanding tokens",
    PREFIX_AWARE: "requests go where most of their prompt is cached and least is outstanding",
}
STOPPED = "The search was stopped: this is the best of what had been tried."
SEARCHING = (
    "Not everything has been tried: this is the best of what was, and nothing says yet how sure it is."
)


def nothing_yet(why: str, replicas: int) -> str:
    """Of a search that is not finished and has found nothing."""
    if why == STOPPED:
        return "Stopped before a configuration was found that meets the objectives."
    limit = f"up to {replicas} replicas" if replicas > 1 else "1 replica"
    return f"Nothing that was tried so far, on {limit}, meets the objectives."


def meets_sentence(choice: Finalist, subject: str, conditions: Conditions, excluded: int = 0) -> str:
    """`2 replicas of M on D with ... meet TTFT p95 <= 2 s (predicted 1.61 s) and ...[ at 1.2 times ...][, for 5 an
    hour][, 3 requests left out]`."""
    candidate = choice.candidate
    verb = "meets" if candidate.replicas == 1 else "meet"
    goals = _joined([_goal(p) for p in choice.predictions])
    deployment = f"{candidate.replicas_text} of {subject} with {candidate.knobs_text}"
    return f"{deployment} {verb} {goals}{_load(conditions)}{_cost(choice)}{_left_out(excluded)}."


def _load(conditions: Conditions) -> str:
    return "" if conditions.load == 1.0 else f" at {conditions.load:.4g} times the traffic's rate"


def _cost(finalist: Finalist) -> str:
    if finalist.cost_per_hour is None:
        return ""
    gpus = f"{finalist.gpus:,} GPU{'s' if finalist.gpus > 1 else ''}"
    return f", for {finalist.cost_per_hour:,.2f} an hour ({gpus})"


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
    relief: Relief | None = None,
) -> str:
    """`No configuration meets this: ...` with the binding objective, the closest candidate and what would help; where
    the closest left the measured region, that it cannot be judged, and by what."""
    start = "No configuration meets this: "
    if closest is None or binding is None:
        reason = never_tried[0].reason if never_tried else "the space is empty"
        return f"{start}none of {len(never_tried)} combinations can be tried, because {reason}."
    goal = binding.goal
    where = f"{closest.candidate.replicas_text} of {subject} with {closest.candidate.knobs_text}"
    alone = (alone_s or {}).get(binding.key)
    if impossible and alone is not None:
        return (
            f"{start}{goal} is impossible for a single request, because even alone on a replica of {subject} "
            f"it {'comes to' if binding.is_joint else 'takes'} {binding.text(alone)}."
        )
    limit = f"up to {max_replicas} replicas" if max_replicas > 1 else "1 replica"
    if closest.status == "not covered":
        return _unjudged(closest, where, limit)
    if closest.status == "saturated":
        what = f"{where}, is still saturated"
    else:
        missed = next((p for p in closest.predictions if p.objective.key == binding.key), None)
        reached = (
            "" if missed is None or missed.predicted_s is None else _predicted(missed, missed.predicted_s)
        )
        what = f"{where}, reaches {reached}"
    hint = ""
    if relief is not None and relief.hardware is not None:
        hint = f"; {relief.hardware.replicas_text} would do"
    elif alone is not None and alone <= binding.limit_s:
        hint = f"; alone on a replica a request sees {binding.text(alone)}, so more replicas may do"
    return f"{start}with {limit} {goal} fails; the closest, {what}{hint}{_relaxed(relief)}."


def _unjudged(closest: Finalist, where: str, limit: str) -> str:
    """What comes closest left the measured region: nothing is known to fail, and nothing can be recommended."""
    objectives = [p.objective.goal for p in closest.predictions]
    known = [p for p in closest.predictions if p.predicted_s is not None]
    values = _joined([f"{p.objective.label} of {_predicted(p, p.predicted_s or 0.0)}" for p in known])
    nearest = f"; the nearest measured steps would give {values}" if values else ""
    reason = closest.reason.partition(BY_NEAREST)[0]  # what fails by them is in the values
    return (
        f"{UNJUDGED}: with {limit} it cannot be judged whether {_joined(objectives)} "
        f"hold{'s' if len(objectives) == 1 else ''}; the closest, {where}, is not covered by the calibration: "
        f"{reason}{nearest}."
    )


def _relaxed(relief: Relief | None) -> str:
    if relief is None or not relief.limits_s or relief.relaxed is None:
        return ""
    parts = [_relaxed_limit(key, value) for key, value in relief.limits_s.items()]
    return f"; so would {'a limit on' if len(parts) == 1 else 'limits on'} {_joined(parts)}"


def _relaxed_limit(key: str, value: float) -> str:
    """`TTFT p95 of 1.2 s`; of goodput every limit grows in proportion."""
    joint = key.rpartition("=")[2].startswith(GOODPUT)
    return f"{label_of_key(key)} of {f'{three_digits(value)} times each' if joint else seconds_text(value)}"


def _predicted(p: Prediction, value: float) -> str:
    """The value; of goodput the share of the requests that meet it."""
    return p.objective.text(value) if p.attained is None else f"{100 * p.attained:.4g} %"


def remarks(
    finalist: Finalist | None,
    climbed: Climbed,
    excluded: Excluded,
    requests: int,
    repeats: int,
    tied: int,
    band: float,
    unfinished: str,
    conditions: Conditions,
    *,
    warned: int = 0,
    outside: str = "",
) -> tuple[str, ...]:
    """What qualifies the answer: exclusions, unclaimed percentiles, thin margins, assumptions.

    `unfinished`: STOPPED or SEARCHING; "" where all were tried. `warned`: of those `tied`, how many come with a
    warning; `outside`: of the combination that leaves the measured region most, by what.
    """
    found: list[str] = []
    if unfinished:
        found.append(unfinished)
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
                f"{tied} other combination{'s' if tied > 1 else ''} at the same cost cannot be told from it: "
                f"the worst margins differ by less than {100 * band:.2g} % of the limit, the error of the step-time "
                f"model. {_passed_over(finalist, warned)}the one nearest to {TITLES[conditions.engine]}'s defaults is "
                "shown."
            )
    uncovered = sum(1 for climb in climbed.climbs if climb.last and climb.last.status == "not covered")
    if uncovered:
        found.append(
            f"{uncovered} combination{'s' if uncovered > 1 else ''} spent more than "
            f"{100 * MAX_UNCOVERED_SHARE:g} % of busy time outside the calibrated region and cannot be judged"
            f"{f'; the one furthest outside {outside}' if outside else ''}."
        )
    if repeats:
        found.append(
            f"{repeats} combinations with a chunk cap at or above the budget repeat the uncapped one and are not "
            "listed."
        )
    if conditions.link is None:
        found.append("Separate prefill and decode pools were not tried: no link between them was given.")
    if conditions.engine != "vllm" and conditions.assumed_max_tokens is None:
        found.append(
            f"{TITLES[conditions.engine]} admits by the output limit that clients ask for: where the traffic has "
            "none, every client is taken to ask for exactly the tokens it gets."
        )
    routed = ROUTED[finalist.candidate.routed if finalist else ROUND_ROBIN]
    found.append(f"Assumed: {'; '.join((*conditions.assumed, routed))}.")
    return tuple(found)


def _passed_over(finalist: Finalist, warned: int) -> str:
    if not warned or finalist.warnings:
        return "Of these, "
    return f"{warned} of them come{'s' if warned == 1 else ''} with a warning; of the rest, "


def _about(finalist: Finalist, band: float) -> list[str]:
    found: list[str] = []
    for p in finalist.predictions:
        o = p.objective
        if not o.claimable(p.samples, p.requests):
            why = f"{p.samples:,} samples of {p.requests:,} requests are too few for it"
            if p.samples == p.requests and p.samples * (100.0 - o.percentile) < 100.0:
                why = f"p{o.percentile:g} of {p.requests:,} request{'' if p.requests == 1 else 's'} is the maximum"
            found.append(f"{o.label} is not claimed: {why} ({o.samples_needed:,} samples needed).")
        if p.margin is not None and abs(p.margin) <= band:
            found.append(
                f"{o.label} is within {100 * band:.2g} % of its limit, less than the error of the step-time model: "
                "it could fall on either side."
            )
    if finalist.refits and (finalist.status == "meets" or finalist.holding):
        found.append(
            f"In {finalist.holding} of {finalist.refits} draws of traffic, step times and link all objectives hold."
        )
    return [*found, *finalist.warnings]


def _goal(p: Prediction) -> str:
    o = p.objective
    goal = o.goal
    if p.predicted_s is None:
        return f"{goal} (no request has a second token: not claimed)"
    plural = "request" if p.requests == 1 else "requests"
    claim = "" if p.claimed else f", not claimed: only {p.requests:,} {plural}"
    return f"{goal} (predicted {_predicted(p, p.predicted_s)}{claim})"


def _joined(parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
