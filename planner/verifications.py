"""Starting a verification, and what of a plan can be verified. Writes rows; serves nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from calibration import jobs
from calibration.models import Calibration
from calibration.starting import start_once
from planner import endpoint_keys
from planner.models import Plan, Verification
from planner.pool_models import chosen_calibrations, chosen_kinds
from planner.verification_subject import conditions_of

DEFAULT_REQUESTS = 300
MOST_ENGINES = 8
TITLES = {
    Verification.REPLAY: "Replay",
    Verification.ENDPOINT: "A server's run",
    Verification.MIXED_LOAD: "Mixed load",
}
#: One reason for all kinds: there is nothing to hold against anything.
NO_ANSWER = "Only a plan that recommends something can be verified."
UNPUBLISHED = "Its calibration is not published: there is nothing to predict with."


def recommends(plan: Plan) -> bool:
    """Whether it has come to an answer that recommends something."""
    result = plan.result
    return bool(result and result["verdict"]["choice"] and not result.get("searching"))


def why_not(plan: Plan) -> str:
    """Why this plan cannot be replayed on a device; empty where it can."""
    if not recommends(plan):
        return NO_ANSWER
    prefill, calibration = chosen_calibrations(plan)
    if Calibration.IMPORTED in (prefill.source, calibration.source):
        return "Its step times were imported: there is no engine here to replay it on."
    if not _one_device_serves(prefill, calibration):
        return (
            f"Its prefill pool is on {prefill.device_label} ({prefill.name}), its decode pool on "
            f"{calibration.device_label} ({calibration.name}): a replay runs both on one device, and none here is both."
        )
    result = plan.result or {}
    split = result["verdict"]["choice"].get("split")
    if split and split["prefill"] + split["decode"] > MOST_ENGINES:
        return (
            f"It has more than {MOST_ENGINES} replicas in two pools, and a replay needs an engine for each."
        )
    if split and max(prefill.tensor_parallel, calibration.tensor_parallel) > 1:
        return "Two pools are replayed for models on one device each."
    if conditions_of(result).prefix != "none":
        return "It counts on hits in a prefix cache, and the engine here has none to replay them with."
    return ""


def _one_device_serves(prefill: Calibration, decode: Calibration) -> bool:
    """Whether engines of both calibrations are the same engine on the same device."""
    one, other = (
        (row.device, row.device_label, (row.environment or {}).get("dtype")) for row in (prefill, decode)
    )
    return one == other


def why_not_endpoint(plan: Plan) -> str:
    """Why no running server can be held against this plan; empty where one can."""
    if not recommends(plan):
        return NO_ANSWER
    if conditions_of(plan.result or {}).prefix == "share":
        return (
            "It assumes a share of prompts in a prefix cache, and no prompts can be sent that a cache has so."
        )
    return ""


def why_not_mixed_load(plan: Plan) -> str:
    """Why long prompts cannot be run beside short answers on this plan's device; empty where they can."""
    if not recommends(plan):
        return NO_ANSWER
    calibration = chosen_calibrations(plan)[1]
    if calibration.source != Calibration.MEASURED:
        return "Its step times were imported: there is no engine here to run anything on."
    if not calibration.published:
        return UNPUBLISHED
    return ""


@dataclass(frozen=True, slots=True)
class Asked:
    """How many requests of one replica, how often, with which seed for the engine's inputs. `options`: what else its
    kind asks for; `load`, the share of what the replicas hold at which they arrive (absent: as planned); of a running
    server its address (EndpointForm.asked). `api_key`: for the job alone, never in a row."""

    requests: int = DEFAULT_REQUESTS
    replays: int = 1
    seed: int = 0
    kind: str = Verification.REPLAY
    options: Mapping[str, Any] = field(default_factory=dict)
    api_key: str = field(default="", repr=False)


def start_verification(
    plan: Plan, owner: Any, asked: Asked, rerun_of: Verification | None = None
) -> Verification:
    """Writes the row and sends the job: to queue ``device``, or ``default`` for a running server. While the same is at
    work for the same owner, that one instead."""
    from planner import tasks

    row = _row(plan, owner, asked, rerun_of)

    def alike(other: Verification) -> bool:
        """Asked the same, with the same key or none."""
        ours, theirs = ({k: v for k, v in each.options.items() if k != "keyed"} for each in (row, other))
        keyed = endpoint_keys.mark(other.pk, asked.api_key) if asked.api_key else row.options.get("keyed")
        return ours == theirs and other.options.get("keyed") == keyed

    def hold_key(row: Verification) -> None:
        if asked.api_key:
            endpoint_keys.hold(row.pk, asked.api_key)

    return start_once(row, SAME, tasks.task_of(row), alike=alike, saved=hold_key)


#: What makes two verifications the same, beside their options.
SAME = ("plan_id", "kind", "requests", "replays", "seed")


def create_verification(
    plan: Plan, owner: Any, asked: Asked, rerun_of: Verification | None = None
) -> Verification:
    """The row alone, for whoever serves it without a queue."""
    row = _row(plan, owner, asked, rerun_of)
    row.save(force_insert=True)
    return row


def _row(plan: Plan, owner: Any, asked: Asked, rerun_of: Verification | None) -> Verification:
    """A rerun of one that was cut short begins with its steps; one that ended is measured anew."""
    kept = rerun_of if rerun_of is not None and goes_on(rerun_of) else None
    options = dict(asked.options)
    if on := chosen_kinds(plan)[1]:
        options["hardware"] = on
    row = Verification(
        project=plan.project, owner=owner, name=f"{TITLES[asked.kind]} of {plan.name}"[:120], plan=plan,
        kind=asked.kind, options=options,
        requests=asked.requests, replays=asked.replays, seed=asked.seed, rerun_of=rerun_of,
        steps=bytes(kept.steps) if kept else b"", steps_of=kept.steps_of if kept else [],
    )  # fmt: skip
    if asked.api_key:
        row.options["keyed"] = endpoint_keys.mark(row.pk, asked.api_key)
    return row


def goes_on(row: Verification) -> bool:
    """Whether running it again begins with the steps that this one had timed: it was cut short after some."""
    return bool(row.steps_of) and not row.is_active and (row.result is None or "partial" in row.result)


def why_no_rerun(row: Verification) -> str:
    """Why this one cannot be run again as it was; empty where it can."""
    if row.is_active:
        return f"It is still {row.status}."
    if row.options.get("keyed"):
        return "It was asked with an API key, and keys are not kept: start it anew from the plan."
    return ""


def rerun(row: Verification, owner: Any) -> Verification:
    asked = Asked(row.requests, row.replays, row.seed, row.kind, row.options)
    return start_verification(row.plan, owner, asked, row)


def cancel(row: Verification) -> bool:
    """False when it had already ended."""
    asked = jobs.request_cancel(row)
    if asked:
        endpoint_keys.drop(row.pk)
    return asked
