"""Collects what is wrong with the rows of a file, so that one refusal can name it all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from planner.traffic.errors import LISTED, TrafficError, TrafficFileError

GIVE_UP = 10_000
"""After so many problems the rest of the file is not read: it is not what it was taken for."""


@dataclass(slots=True)
class Problems:
    listed: list[TrafficFileError] = field(default_factory=list)
    total: int = 0

    def add(self, line: int, column: str | None, message: str, code: str = "bad_value") -> None:
        self.total += 1
        if len(self.listed) < LISTED:
            self.listed.append(TrafficFileError(line, column, message, code))
        if self.total >= GIVE_UP:
            self.stop()

    def stop(self) -> NoReturn:
        """Refuse the file now, before its end."""
        raise TrafficError(self.listed, self.total, total_is_at_least=True)

    def check(self) -> None:
        """Refuse the file if anything was wrong."""
        if self.total:
            raise TrafficError(self.listed, self.total)
