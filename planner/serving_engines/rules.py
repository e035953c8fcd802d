"""What every engine module says: rules that a configuration breaks, and how the generic policies are expressed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

#: Below this a chunk does not fill the tiles of a matrix product: the weights are read for almost nothing.
WORTHWHILE_CHUNK_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A rule that a configuration breaks ("error": the engine refuses it) or strains ("warning")."""

    field: str
    message: str
    severity: Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class PolicySupport:
    """Can an engine do what a generic policy (`PolicyKnobs.policy`) does?

    always: it does nothing else; default: it does unless told otherwise; option: `flags` make it; nearest: `flags`
    make something like it, as `note` says; never: it cannot, so a plan for this engine never recommends it.
    `flags` are names in the engine's own table.
    """

    policy: str
    how: Literal["always", "default", "option", "nearest", "never"]
    flags: tuple[str, ...] = ()
    note: str = ""


def refuse(violations: Iterable[RuleViolation]) -> None:
    """ValueError for the first broken rule; strained ones pass."""
    for violation in violations:
        if violation.severity == "error":
            raise ValueError(f"{violation.field}: {violation.message}")


def error(field: str, message: str) -> RuleViolation:
    return RuleViolation(field, message, "error")


def warning(field: str, message: str) -> RuleViolation:
    return RuleViolation(field, message, "warning")


def expressible(support: Iterable[PolicySupport], policy: str) -> bool:
    """Is the policy itself, not something near it, within the engine's reach?"""
    return any(each.policy == policy and each.how in ("always", "default", "option") for each in support)
