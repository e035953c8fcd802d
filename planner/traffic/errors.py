"""What is wrong with a file or a wish, in a form that page, API and command can all show.

Every problem is one `TrafficFileError`: the field it belongs to, the line (counted from 1, the header
included) and the column by name, a code for machines and a sentence for people. A file is refused with *all*
its problems, the first `LISTED` of them in full and the rest as a number: whoever mends it should not have
to upload it once per mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LISTED = 50
"""So many problems, or line numbers of one finding, are listed one by one."""


@dataclass(frozen=True, slots=True)
class TrafficFileError:
    """One problem. `line` and `column` are None where it concerns the whole file or an option."""

    line: int | None
    column: str | None
    message: str
    code: str = "invalid"
    field: str = "file"

    def __str__(self) -> str:
        place = [f"line {self.line}"] if self.line is not None else []
        if self.column is not None:
            place.append(f"column {self.column}")
        return f"{', '.join(place)}: {self.message}" if place else self.message

    def to_dict(self) -> dict[str, Any]:
        """The shape of `errors[]` in the API, with the place beside the sentence."""
        return {
            "field": self.field,
            "message": str(self),
            "code": self.code,
            "line": self.line,
            "column": self.column,
        }


class TrafficError(ValueError):
    """No traffic can be made of this. `errors` holds at most LISTED problems, `total` counts them all;
    `total_is_at_least` says that reading was given up before the end of the file."""

    def __init__(
        self, errors: Sequence[TrafficFileError], total: int | None = None, *, total_is_at_least: bool = False
    ) -> None:
        self.errors = list(errors[:LISTED])
        self.total = len(errors) if total is None else total
        self.total_is_at_least = total_is_at_least
        super().__init__(self.detail)

    @property
    def detail(self) -> str:
        """One sentence: the first problem and how many more there are."""
        if not self.errors:
            return "The traffic cannot be used."
        more = self.total - 1
        if more <= 0:
            return str(self.errors[0])
        at_least = "at least " if self.total_is_at_least else ""
        return f"{self.errors[0]} ({at_least}{more} more {'problem' if more == 1 else 'problems'})"

    @property
    def field(self) -> str:
        """The form field that the (first) problem belongs to."""
        return self.errors[0].field if self.errors else "file"

    def to_dict(self) -> dict[str, Any]:
        return {
            "detail": self.detail,
            "errors": [error.to_dict() for error in self.errors],
            "total": self.total,
            "total_is_at_least": self.total_is_at_least,
        }


class TooLarge(TrafficError):
    """Over a cap (HTTP 413). `what` names the cap: file_bytes, unpacked_bytes, rows or line_bytes."""

    def __init__(self, what: str, limit: int, message: str, line: int | None = None) -> None:
        self.what = what
        self.limit = limit
        super().__init__([TrafficFileError(line, None, message, code="too_large")])

    def to_dict(self) -> dict[str, Any]:
        return {**TrafficError.to_dict(self), "limit": {"what": self.what, "value": self.limit}}


def refuse(message: str, *, code: str, line: int | None = None, field: str = "file") -> TrafficError:
    """An error about the whole file, or about one option of the import."""
    return TrafficError([TrafficFileError(line, None, message, code=code, field=field)])
