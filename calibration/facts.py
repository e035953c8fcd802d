"""What a calibration knows beside step times: whose engine it was, its KV pool by budget, its transfers.

Kept as one JSON value per calibration and as three fields of a calibration file; always read and written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from calibration.capacity import KVCapacity
from calibration.engines import OURS, UNKNOWN, MeasuredEngine
from calibration.transfer import TransferTable

MAX_TRANSFERS = 64
T = TypeVar("T")


class FactsError(ValueError):
    """`field` (dotted path) and `message`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


@dataclass(frozen=True, slots=True)
class Facts:
    """`kv_capacity` None: only one KV pool is known. `transfers`: measured or entered, told apart by their labels."""

    engine: MeasuredEngine
    kv_capacity: KVCapacity | None = None
    transfers: tuple[TransferTable, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "engine": self.engine.to_dict(),
            "kv_capacity": self.kv_capacity.to_dict() if self.kv_capacity else None,
            "transfers": [table.to_dict() for table in self.transfers],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], engine: str = "") -> Facts:
        """Inverse of `to_dict`. What a file of before these fields lacks is what it had: `engine` (from its
        provenance; "ridgeline" is ours), one pool, no transfers. Raises FactsError."""
        known = MeasuredEngine(OURS) if engine == OURS else MeasuredEngine(UNKNOWN, "", "step table")
        if values.get("engine") is not None:
            known = _read("engine", values["engine"], MeasuredEngine.from_dict)
        capacity = values.get("kv_capacity")
        tables = values.get("transfers", [])
        if not isinstance(tables, list) or len(tables) > MAX_TRANSFERS:
            raise FactsError("transfers", f"must be a list of at most {MAX_TRANSFERS} tables")
        return cls(
            known,
            None if capacity is None else _read("kv_capacity", capacity, KVCapacity.from_dict),
            tuple(_read(f"transfers.{i}", table, TransferTable.from_dict) for i, table in enumerate(tables)),
        )


#: Samples from elsewhere with nothing said about them.
NOTHING_KNOWN = Facts(MeasuredEngine(UNKNOWN, "", "step table"))


def _read(field: str, value: Any, reader: Callable[[Mapping[str, Any]], T]) -> T:
    if not isinstance(value, Mapping):
        raise FactsError(field, "must be an object")
    try:
        return reader(value)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        problem = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise FactsError(field, problem) from error
