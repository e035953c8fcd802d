"""A derived traffic's recipe: what it was made of, which operations in which order, the seed.

Operations are pure: Traffic -> Traffic. Every one draws from a generator of its own, made of the seed and its place,
so the same recipe on the same parents gives the same arrays, bit for bit; parents are named by id and by the digest
of their arrays, so that a recipe is never played on something else unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from planner.traffic import described
from planner.traffic.errors import TrafficError, TrafficFileError, refuse
from planner.traffic.identity import arrays_sha256
from planner.traffic.model import Finding, Traffic
from planner.traffic.shaping.choosing import Filter, Thin, Window
from planner.traffic.shaping.context import Context
from planner.traffic.shaping.kinds import Classify, Merge
from planner.traffic.shaping.lengths import AddTokens, ClipLengths, ScaleLengths
from planner.traffic.shaping.timing import AddBursts, CompressTime, Repeat, SpreadGrid

MAX_OPERATIONS = 20
VERSION = 1


class Operation(Protocol):
    """What the dataclasses of this package have in common."""

    def sentence(self) -> str: ...

    def apply(self, traffic: Traffic, context: Context) -> Traffic: ...


OPERATIONS: dict[str, type[Any]] = {
    "window": Window,
    "thin": Thin,
    "compress_time": CompressTime,
    "repeat": Repeat,
    "merge": Merge,
    "filter": Filter,
    "classify": Classify,
    "scale_lengths": ScaleLengths,
    "clip_lengths": ClipLengths,
    "add_tokens": AddTokens,
    "add_bursts": AddBursts,
    "spread_grid": SpreadGrid,
}
"""By the name that stands as "op" in a recipe."""
_NAMES = {kind: name for name, kind in OPERATIONS.items()}


@dataclass(frozen=True, slots=True)
class Parent:
    """A traffic that a recipe is about: where it is kept (`id`), what it is called, the traffic itself."""

    id: str
    name: str
    traffic: Traffic

    def to_dict(self) -> dict[str, str]:
        return {"id": self.id, "name": self.name, "arrays_sha256": arrays_sha256(self.traffic)}


def parse_operations(data: Any, path: str = "operations") -> tuple[Operation, ...]:
    """Operations from JSON: a list of objects, each with "op" and its fields. TrafficError names every field that
    is wrong by its path, "operations.0.factor"."""
    if not isinstance(data, list | tuple) or not 1 <= len(data) <= MAX_OPERATIONS:
        raise refuse(f"Give a list of 1 to {MAX_OPERATIONS} operations.", code="option", field=path)
    found: list[Operation] = []
    problems: list[TrafficFileError] = []
    for index, entry in enumerate(data):
        place = f"{path}.{index}"
        kind = entry.get("op") if isinstance(entry, Mapping) else None
        if not isinstance(kind, str) or kind not in OPERATIONS:
            message = f'Each operation is an object whose "op" is one of {", ".join(OPERATIONS)}.'
            problems.append(TrafficFileError(None, None, message, "option", f"{place}.op"))
            continue
        try:
            rest = {key: value for key, value in entry.items() if key != "op"}
            found.append(described.parse(OPERATIONS[kind], rest, place))
        except TrafficError as error:
            problems += error.errors
    if problems:
        raise TrafficError(problems)
    return tuple(found)


def operation_dict(operation: Operation) -> dict[str, Any]:
    """As `parse_operations` takes it."""
    return {"op": _NAMES[type(operation)], **described.to_dict(operation)}


def merged_ids(operations: Sequence[Operation]) -> list[str]:
    """Of the traffics that are merged, each once."""
    return list(dict.fromkeys(one.traffic for one in operations if isinstance(one, Merge)))


def shape(
    parent: Parent,
    operations: Sequence[Operation],
    *,
    seed: int = 0,
    others: Sequence[Parent] = (),
    on_step: Callable[[int], None] | None = None,
) -> Traffic:
    """`parent` with the operations applied in order; `others` are what is merged. Its recipe makes it again.
    `on_step(index)` hears which operation comes next; what it raises ends the work.

    TrafficError names the field of the operation that cannot be done, "operations.1.to_s"."""
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise refuse("seed must be a whole number from 0.", code="option", field="seed")
    traffic = replace(parent.traffic, warnings=tuple(_inherited(parent)))
    by_id = {other.id: other.traffic for other in others}
    for index, operation in enumerate(operations):
        salt = int(np.random.SeedSequence([seed, index, 1]).generate_state(1, np.uint64)[0] >> 1)
        context = Context(np.random.default_rng([seed, index]), by_id, salt)
        if on_step is not None:
            on_step(index)
        try:
            traffic = operation.apply(traffic, context)
        except TrafficError as error:
            raise described.problem_of(error, f"operations.{index}") from error
    used = [other.to_dict() for other in others if other.id in merged_ids(operations)]
    recipe = {
        "version": VERSION,
        "parents": [parent.to_dict(), *used],
        "operations": [operation_dict(one) for one in operations],
        "seed": seed,
        "numpy": np.__version__,
    }
    return replace(
        traffic,
        source=parent.name,
        format="shaped",
        rows_read=traffic.requests,
        recipe={"shape": recipe, "arrays_sha256": arrays_sha256(traffic)},
    )


def remake(recipe: Mapping[str, Any], parents: Mapping[str, Traffic]) -> Traffic:
    """The traffic that `recipe` (of one that `shape` made) stands for, from its parents by id.

    TrafficError where a parent is missing or is not what it was, and where something else comes out."""
    said = recipe["shape"]
    found = []
    for entry in said["parents"]:
        traffic = parents.get(entry["id"])
        if traffic is None:
            raise refuse(f"The traffic {entry['name']} is no longer there.", code="parent", field="parents")
        parent = Parent(entry["id"], entry["name"], traffic)
        if parent.to_dict()["arrays_sha256"] != entry["arrays_sha256"]:
            raise refuse(f"The traffic {entry['name']} is another one now.", code="parent", field="parents")
        found.append(parent)
    made = shape(found[0], parse_operations(said["operations"]), seed=said["seed"], others=found)
    if made.recipe["arrays_sha256"] != recipe["arrays_sha256"]:
        message = f"Something else came out: made with numpy {said['numpy']}, this is {np.__version__}."
        raise refuse(message, code="differs", field="arrays_sha256")
    return made


def _inherited(parent: Parent) -> list[Finding]:
    """What was known of the parent, said of it; lines of its file mean nothing here."""
    return [
        Finding(
            f"parent_{one.code}".replace("parent_parent_", "parent_"),
            f"{parent.name}: {one.message}",
            one.count,
        )
        for one in parent.traffic.warnings
    ]
