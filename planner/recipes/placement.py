"""On which nodes a pool runs, where a plan counts on certain hardware.

A node selector takes what a cluster's nodes are labelled with. Clusters with NVIDIA's GPU feature discovery have
`nvidia.com/gpu.product`, others have labels of their own: whoever starts the recipe may say it. Unless it is said,
nodes are to be labelled with LABEL and the name of the hardware as the plan calls it, and the recipe says how.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LABEL: Final = "ridgeline/hardware"
_PART: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX: Final = (
    r"(?=[^/]{1,253}/)[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?){0,9}/"
)
#: `key=value` as Kubernetes takes it, the key with an optional domain before it.
NODE_LABEL: Final = re.compile(rf"(?:{_PREFIX})?{_PART}={_PART}")


@dataclass(frozen=True, slots=True)
class Placement:
    """`hardware`: as the plan calls it; `key`, `value`: the label of nodes that have it; `stated`: by the user."""

    hardware: str
    key: str
    value: str
    stated: bool = False

    @property
    def selector(self) -> dict[str, str]:
        return {self.key: self.value}

    @property
    def label(self) -> str:
        return f"{self.key}={self.value}"


def stated(hardware: str, label: str) -> Placement:
    """Raises ValueError for what is no label."""
    if not NODE_LABEL.fullmatch(label):
        raise ValueError(f"{label!r} is no node label: key=value")
    key, _, value = label.partition("=")
    return Placement(_one_line(hardware), key, value, stated=True)


def by_name(hardware: Sequence[str]) -> list[Placement]:
    """LABEL with a value for each, no two alike."""
    values: list[str] = []
    for number, name in enumerate(hardware, 1):
        value = re.sub(r"[^A-Za-z0-9]+", "-", name)[:60].strip("-") or "hardware"
        values.append(value if value not in values else f"{value}-{number}")
    return [Placement(_one_line(name), LABEL, value) for name, value in zip(hardware, values, strict=True)]


def _one_line(name: str) -> str:
    """Names are people's, and stand in comments of files that a shell reads."""
    return " ".join(name.split())
