"""An exported plan asked again: from its JSON alone, of whatever is stored here that is what it was asked of.

The file holds every input but the traffic's requests and the step-time law, and a digest of each of these. What is
stored under other names or ids, on another machine, is found by its digest. The question is made as a plan's page makes
it, and before anything is searched it is compared with the file's, input by input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from calibration.models import Calibration
from calibration.services import step_time_model
from planner import services
from planner.models import TrafficSet
from planner.search import Conditions, SearchSpace, parse_objectives
from planner.search.inputs import HASHES, MADE_WITH, sha256
from planner.search.periods import Asked
from planner.traffic.identity import arrays_sha256

#: Of a traffic, what it is called and where it came from: other names make no other question.
NAMES: Final = ("source", "format", "recipe")
#: What a result has as its page gives it, and as the API gives it has not.
OF_THE_PAGE: Final = frozenset({"candidates", "schema"})
#: Of a result, what is not its answer.
APART: Final = ("inputs", MADE_WITH, *HASHES)


class NotAPlan(ValueError):
    """The file is no plan's result, or was changed; the text says which."""


def inputs_of(result: Any) -> Mapping[str, Any]:
    """An exported result's inputs, proven by its hash. Raises NotAPlan."""
    if not isinstance(result, Mapping) or not isinstance(result.get("inputs"), Mapping):
        raise NotAPlan("this is not the result of a plan: it has no inputs")
    inputs: Mapping[str, Any] = result["inputs"]
    if sha256(inputs) != result.get("content_hash"):
        raise NotAPlan("its inputs are not those of its content_hash: the file was changed")
    if not {"hardware", "schedule"} <= set(inputs):
        raise NotAPlan("it was made before plans told all of their inputs; ask anew")
    return inputs


def laws_of(inputs: Mapping[str, Any]) -> list[str]:
    """SHA-256 of the step-time laws, by kind of hardware."""
    return [kind["step_time_sha256"] for kind in inputs["hardware"]]


def calibration_with(law: str, owner: Any) -> Calibration | None:
    """The newest published one whose fit is this."""
    rows = Calibration.objects.visible_to(owner).usable().order_by("-created_at")
    return next((row for row in rows if sha256(step_time_model(row).to_dict()) == law), None)


def traffic_with(inputs: Mapping[str, Any], owner: Any) -> TrafficSet | None:
    """The newest with these very requests."""
    asked = inputs["traffic"]
    rows = TrafficSet.objects.visible_to(owner).filter(statistics__requests=asked["requests"])
    newest = rows.order_by("-created_at")
    return next((r for r in newest if arrays_sha256(services.traffic_of(r)) == asked["arrays_sha256"]), None)


def request_of(
    inputs: Mapping[str, Any], name: str, calibration: Calibration, second: Calibration | None, traffic: TrafficSet
) -> services.PlanRequest:  # fmt: skip
    """The question. Raises NotAPlan for what this version cannot read."""
    try:
        return services.PlanRequest(
            name=name, calibration=calibration, traffic=traffic, second=second,
            objectives=parse_objectives(inputs["objectives"]), space=SearchSpace.from_dict(inputs["space"]),
            max_replicas=inputs["space"]["max_replicas"], seed=int(inputs["seed"]),
            conditions=Conditions.from_dict(inputs["conditions"]), schedule=Asked(**inputs["schedule"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAPlan(f"this version cannot read its inputs: {type(error).__name__}: {error}") from error


def differences(asked: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """The inputs that are not the file's, as paths such as `conditions.headroom`; names do not count."""
    return list(_unlike(_unnamed(asked), _unnamed(again), ""))


def same_answer(result: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    """To the last digit, schedule included. What the API leaves out of a result (its candidates have an address of
    their own) is compared by the hash of the whole."""
    one, other = ({k: v for k, v in each.items() if k not in APART} for each in (result, again))
    left_out = other.keys() - one.keys()
    if left_out and left_out <= OF_THE_PAGE:
        if result.get("answer_hash") != again.get("answer_hash"):
            return False
        other = {k: v for k, v in other.items() if k in one}
    return sha256(one) == sha256(other)


def _unnamed(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {**inputs, "traffic": {k: v for k, v in inputs["traffic"].items() if k not in NAMES}}


def _unlike(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _unlike(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    elif sha256(one) != sha256(other):
        yield path
