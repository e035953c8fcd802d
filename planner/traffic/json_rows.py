"""What of a JSON line is decoded: the wanted fields, also inside of objects, as a msgspec type made for them.

usage.prompt_tokens is looked for in the object usage, unless the file has a key with that very name.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from planner.traffic.layout import Layout
from planner.traffic.stamps import WallClock

Tree = dict[str, Any]
_OPTIONAL: dict[str, Any] = {
    "max_tokens": int | None,
    "priority": int | None,
    "class": str | int | None,
    "status": str | int | float | bool | None,
}
_REQUIRED: dict[str, Any] = {"prompt": int, "output": int, "time": int | float}


class RowFields:
    """The decoder's type, and where in its values each role is."""

    def __init__(self, layout: Layout, clock: WallClock | None = None) -> None:
        self.layout = layout
        self.clock = clock
        required = {**_REQUIRED, "time": str} if layout.stamps else _REQUIRED
        self.paths: dict[str, tuple[str, ...]] = {
            role: _path(name, layout.header) for role, name in layout.used.items()
        }
        tree: Tree = {}
        self._places: dict[str, list[str]] = {}
        for role, path in self.paths.items():
            node, place = tree, []
            for key in path[:-1]:
                place.append(_slot(node, key))
                node = node[key][1]
            place.append(_slot(node, path[-1], role))
            self._places[role] = place
        extra: list[Any] = [
            ("hash_ids", list[int] | None, None),
            ("delay", int | float | None, None),
        ]
        # Where somebody mapped one of the two to a role, neither is what it is elsewhere.
        hidden = "hash_ids" in tree or "delay" in tree
        self.type = _struct(
            tree, [(name, None, None) for name, *_ in extra] if hidden else extra, required, hidden=hidden
        )
        self._getters = {role: attrgetter(".".join(place)) for role, place in self._places.items()}

    def values(self, role: str, rows: list[Any]) -> list[Any]:
        """The values of a role, None where they are optional and missing; no list for a role without one."""
        getter = self._getters.get(role)
        if getter is None:
            return []
        if len(self.paths[role]) == 1 or role in _REQUIRED:
            return list(map(getter, rows))
        return [_through(row, self._places[role]) for row in rows]


def _through(row: Any, place: list[str]) -> Any:
    for name in place:
        row = getattr(row, name) if row is not None else None
    return row


def _path(name: str, header: tuple[str, ...]) -> tuple[str, ...]:
    inside = "." in name and name.partition(".")[0] in header
    return tuple(name.split(".")) if inside else (name,)


def _slot(node: Tree, key: str, role: str | None = None) -> str:
    """The attribute for this key; a node for the objects on the way."""
    if key not in node:
        node[key] = (f"f{len(node)}", {} if role is None else None, role)
    return str(node[key][0])


def _struct(
    tree: Tree, extra: list[Any], types: dict[str, Any], *, hidden: bool = False
) -> type[msgspec.Struct]:
    """`types` of the required fields, by role."""
    required: list[Any] = []
    optional: list[Any] = []
    rename: dict[str, str] = {}
    for key, (name, below, role) in tree.items():
        rename[name] = key
        if below is not None:
            kind = _struct(below, [], types)
            needed = any(entry[2] in _REQUIRED for entry in below.values()) or any(
                entry[1] for entry in below.values()
            )
            (required if needed else optional).append((name, kind) if needed else (name, kind | None, None))
        elif role in _REQUIRED:
            required.append((name, types[role]))
        else:
            optional.append((name, _OPTIONAL[str(role)], None))
    if hidden:
        rename |= {name: f"\x00{name}" for name, *_ in extra}
    return msgspec.defstruct("Row", [*required, *optional, *extra], rename=rename, gc=False)
