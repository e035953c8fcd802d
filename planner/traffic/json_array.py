"""One JSON array of requests, or of them inside of an object, taken apart into JSON lines.

Exports are often `[{...}, {...}]`, on one line or indented over many, or `{"requests": [...]}`. Its elements become
lines, so that everything else is as with JSON lines; what is said of line n is then about the array's element n.
An array is one value: it is held in memory whole, up to ARRAY_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from planner.traffic.errors import TooLarge
from planner.traffic.stream import ARRAY_BYTES

_CUTS = 200


def array_lines(content: bytes, *, cut: bool) -> bytes | None:
    """The objects of the array as JSON lines; None where the content is no array of objects. With `cut` the content
    may end anywhere: the elements that are whole are taken."""
    elements = _elements(content)
    if elements is None and cut:
        elements = _whole_elements(content)
    if not elements or not all(bytes(one).lstrip()[:1] == b"{" for one in elements):
        return None
    # A line end within an element stands between its parts: inside of a text JSON writes it as \n.
    return b"\n".join(bytes(one).replace(b"\r", b" ").replace(b"\n", b" ") for one in elements) + b"\n"


def whole(blocks: Iterable[bytes]) -> bytes:
    """All of it. TooLarge above ARRAY_BYTES."""
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > ARRAY_BYTES:
            message = (
                f"A JSON array is read up to {ARRAY_BYTES >> 20} MiB; write one object per line (JSON lines)."
            )
            raise TooLarge("array_bytes", ARRAY_BYTES, message)
    return bytes(content)


def _elements(content: bytes) -> list[msgspec.Raw] | None:
    try:
        return msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None
    lists = [part for part in parts.values() if bytes(part).lstrip()[:1] == b"["]
    if len(lists) != 1:
        return None
    try:
        return msgspec.json.decode(bytes(lists[0]), type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None


def _whole_elements(content: bytes) -> list[msgspec.Raw] | None:
    """Of an array that goes on: up to the last closing brace that ends an element."""
    if content.lstrip()[:1] != b"[":
        return None
    at = len(content)
    for _ in range(_CUTS):
        at = content.rfind(b"}", 0, at)
        if at < 0:
            return None
        try:
            return msgspec.json.decode(content[: at + 1] + b"]", type=list[msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError):
            continue
    return None
