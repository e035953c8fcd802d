"""What a result says of how its server was run, wherever in the document that stands: whether it guessed tokens, and
over how many replicas it speaks. Figures of such runs mean something else than they seem to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.traffic.benchmarks.run import number

_MOST_NODES, _DEEPEST = 20_000, 8
_SPECULATION = re.compile(
    r"speculative|spec_decod|accept(ance|ed)?_(rate|length|len|ratio)|draft_(model|tokens)"
)
_REPLICAS = re.compile(
    r"(num_|n_|number_of_)?(replicas?|instances?|engines?|servers|backends)(_count|_num)?|(data_parallel|dp)(_size)?"
)


def remarks(document: Any) -> tuple[str, ...]:
    """Sentences for people, none where the document says nothing of the kind."""
    guessed: list[str] = []
    replicas: list[tuple[str, float]] = []
    for key, value in _entries(document, 0, [0]):
        name = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")
        if _SPECULATION.search(name) and value not in (None, False, 0, "", [], {}) and len(guessed) < 3:
            shown = f" {value:.4g}" if number(value) is not None else ""
            guessed.append(f"{key}{shown}")
        found = number(value)
        if _REPLICAS.fullmatch(name) and found is not None and found > 1:
            replicas.append((key, found))
    told = []
    if guessed:
        told.append(
            f"The server guessed tokens ahead ({', '.join(guessed)}): a step then gives several tokens at once, its "
            "ITL is of such chunks, and its times hold for texts whose guesses are accepted as often."
        )
    if replicas:
        key, count = replicas[0]
        told.append(
            f"The figures are of {count:g} replicas together ({key}): throughput and concurrency are the cluster's, "
            "and must be divided before they are set against one replica's GPUs."
        )
    return tuple(told)


def _entries(node: Any, depth: int, seen: list[int]) -> Iterator[tuple[str, Any]]:
    if depth > _DEEPEST or seen[0] > _MOST_NODES:
        return
    if isinstance(node, Mapping):
        for key, value in node.items():
            seen[0] += 1
            yield str(key), value
            yield from _entries(value, depth + 1, seen)
    elif isinstance(node, list):
        for value in node[:50]:
            seen[0] += 1
            yield from _entries(value, depth + 1, seen)
