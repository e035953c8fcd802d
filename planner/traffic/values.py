"""Fields -> values: times, token counts and classes of a CSV, with a reason for each that is none.

What a file as a whole decides (stamps or numbers, decimal point or comma) is decided by the first row that
shows it, and a later row that disagrees is an error: a column with "1,5" and "1.200" has no sure reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.traffic.columns import MAX_CLASS_BYTES, MAX_CLASSES, NO_CLASS, Columns
from planner.traffic.layout import Layout
from planner.traffic.model import Floats, Integers
from planner.traffic.numbers import (
    THOUSANDS,
    Bytes,
    Mask,
    Positions,
    count_problem,
    quoted,
    read_counts,
    read_decimals,
    scalar_decimal,
    separated_count,
)
from planner.traffic.options import ImportOptions
from planner.traffic.outcomes import says_failed
from planner.traffic.problems import Problems
from planner.traffic.split import Batch, Field
from planner.traffic.stamps import WallClock, looks_like_stamp
from planner.traffic.stream import decoded

_STATUS_BYTES = 24
_COMMA, _POINT, _MINUS = ord(","), ord("."), ord("-")
Texts = NDArray[np.bytes_]


@dataclass(slots=True)
class ValueReader:
    """Reads batches whose fields are those of the layout's roles, in their order."""

    layout: Layout
    columns: Columns
    problems: Problems
    options: ImportOptions
    point: str | None = None  # the decimal mark, None until a row shows it
    stamps: bool | None = None
    clock: WallClock | None = None
    proven: bool = False  # no thousands separator can be meant
    doubtful: tuple[int, str, str] | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """Positions in the header of what `read` expects."""
        return tuple(self.layout.header.index(name) for name in self.layout.used.values())

    def read(self, batch: Batch) -> None:
        if not len(batch.lines):
            return
        names = self.layout.used
        fields = dict(zip(names, batch.fields, strict=True))
        failed = self._failed(batch, fields["status"], names["status"]) if "status" in fields else None
        prompts = self._counts(batch, fields["prompt"], names["prompt"], failed)
        outputs = self._counts(batch, fields["output"], names["output"], failed)
        if "time" in fields:
            self._times(batch, fields["time"], names["time"])
        self.columns.add_options(
            self._caps(batch, fields["max_tokens"], names["max_tokens"]) if "max_tokens" in fields else None,
            self._priorities(batch, fields["priority"], names["priority"]) if "priority" in fields else None,
            failed,
        )
        if "class" in fields:
            self._classes(batch, fields["class"], names["class"])
        self.columns.add(batch.lines, prompts, outputs)

    def _counts(self, batch: Batch, field: Field, name: str, failed: Mask | None) -> Integers:
        values, good = read_counts(batch.data, *field)
        if failed is not None:
            good |= failed & (field[0] == field[1])  # a request that failed has no count to write: it is 0
        for index in np.flatnonzero(~good).tolist():
            text = _text(batch.data, field, index)
            value = separated_count(text, self.options.thousands) if self.options.thousands else None
            if value is None:
                self.problems.add(int(batch.lines[index]), name, count_problem(text))
            else:
                values[index], good[index] = value, True
        return np.where(good, values, 0)

    def _caps(self, batch: Batch, field: Field, name: str) -> Integers:
        """max_tokens: a count of at least 1, or 0 for an empty field, which caps nothing."""
        starts, ends = field
        values, good = read_counts(batch.data, starts, ends)
        empty = starts == ends
        for index in np.flatnonzero(~empty & (~good | (values == 0))).tolist():
            text = _text(batch.data, field, index)
            message = f"{quoted(text)} caps the output at nothing" if good[index] else count_problem(text)
            self.problems.add(int(batch.lines[index]), name, message)
        return np.where(good & ~empty, values, 0)

    def _priorities(self, batch: Batch, field: Field, name: str) -> Integers:
        """Whole numbers, also below 0; an empty field is the usual priority, 0."""
        starts, ends = field
        minus = (starts < ends) & (batch.data[np.minimum(starts, len(batch.data) - 1)] == _MINUS)
        values, good = read_counts(batch.data, starts + minus, ends)
        for index in np.flatnonzero(~good & (starts != ends)).tolist():
            message = f"{quoted(_text(batch.data, field, index))} is not a whole number of at most 8 digits"
            self.problems.add(int(batch.lines[index]), name, message)
        return np.where(good, np.where(minus, -values, values), 0)

    def _failed(self, batch: Batch, field: Field, name: str) -> Mask:
        """Rows that say they failed. Only that is kept, never what the column says."""
        texts, inverse = _distinct(batch.data, field, _STATUS_BYTES)
        verdicts = [says_failed(decoded(bytes(text)), name) for text in texts]
        return np.array(verdicts, np.bool_)[inverse]

    def _times(self, batch: Batch, field: Field, name: str) -> None:
        if self.stamps is None:
            self.stamps = looks_like_stamp(_text(batch.data, field, 0))
        if self.stamps:
            self.columns.times.append(self._wall_clock(batch, field, name))
        else:
            self.columns.times.append(self._numbers(batch, field, name))

    def _wall_clock(self, batch: Batch, field: Field, name: str) -> Integers:
        if self.clock is None:
            self.clock = WallClock(self.options.utc_offset)
        values, wrong = self.clock.read(batch.data, *field)
        for index, message, code in wrong:
            self.problems.add(int(batch.lines[index]), name, message, code)
        return values

    def _numbers(self, batch: Batch, field: Field, name: str) -> Floats:
        semicolons = self.layout.delimiter == ";"
        if self.point is None and self.layout.delimiter != ",":
            self.point = _first_mark(batch.data, field)
            self.proven = self.proven or not semicolons
        point = self.point or "."
        values, good = read_decimals(batch.data, *field, point=ord(point))
        for index in np.flatnonzero(~good).tolist():
            value = scalar_decimal(_text(batch.data, field, index), point)
            if isinstance(value, str):
                self.problems.add(int(batch.lines[index]), name, value)
            else:
                values[index] = value
        if semicolons and self.point and not self.proven:
            self._look_for_proof(batch, field, name)
        return values

    def _look_for_proof(self, batch: Batch, field: Field, name: str) -> None:
        """ "1,5" shows a decimal comma; "1,200" alone could be twelve hundred."""
        for index in range(len(batch.lines)):
            text = _text(batch.data, field, index)
            if (self.point or ".") not in text:
                continue
            if not THOUSANDS.fullmatch(text) or text.startswith("0"):
                self.proven = True
                return
            if self.doubtful is None:
                self.doubtful = (int(batch.lines[index]), name, text)

    def finish(self) -> None:
        """After the last batch: what no row has settled."""
        if self.doubtful and not self.proven:
            line, name, text = self.doubtful
            message = (
                f"{quoted(text)} may have a decimal {'comma' if self.point == ',' else 'point'} or a "
                "thousands separator, and no other row settles it: say which (decimal)"
            )
            self.problems.add(line, name, message, "ambiguous_decimal")

    def _classes(self, batch: Batch, field: Field, name: str) -> None:
        starts, ends = field
        widths = ends - starts
        long = widths > MAX_CLASS_BYTES
        for index in np.flatnonzero(long).tolist():
            self.problems.add(int(batch.lines[index]), name, f"longer than {MAX_CLASS_BYTES} characters")
        names, inverse, first = _distinct_first(batch.data, field, MAX_CLASS_BYTES)
        codes = np.zeros(len(names), np.int16)
        for index in np.argsort(first).tolist():  # numbered as they appear, wherever blocks are cut
            code = self.columns.class_code(decoded(bytes(names[index])) or NO_CLASS)
            if code is None:
                message = f"more than {MAX_CLASSES:,} different values"
                self.problems.add(int(batch.lines[first[index]]), name, message, "too_many_classes")
                self.problems.stop()
            codes[index] = code
        self.columns.classes.append(codes[inverse])


def _distinct(data: Bytes, field: Field, most_bytes: int) -> tuple[Texts, Positions]:
    names, inverse, _ = _distinct_first(data, field, most_bytes)
    return names, inverse


def _distinct_first(data: Bytes, field: Field, most_bytes: int) -> tuple[Texts, Positions, Positions]:
    """The different texts of a column, cut at `most_bytes`, which of them each row has, and where each is
    first."""
    starts, ends = field
    widths = np.minimum(ends - starts, most_bytes)
    width = int(widths.max(initial=1)) or 1
    place = np.arange(width)
    inside = place < widths[:, None]
    cells = np.where(inside, data[np.minimum(starts[:, None] + place, len(data) - 1)], 0)
    texts = cells.astype(np.uint8).view(f"S{width}")[:, 0]
    names, first, inverse = np.unique(texts, return_index=True, return_inverse=True)
    return names, inverse, first


def _text(data: Bytes, field: Field, index: int) -> str:
    starts, ends = field
    return decoded(data[int(starts[index]) : int(ends[index])].tobytes())


def _first_mark(data: Bytes, field: Field) -> str | None:
    """The first decimal mark in a column, "," or "."; None where all numbers are whole."""
    starts, ends = field
    places = np.flatnonzero((data == _COMMA) | (data == _POINT))
    row = np.searchsorted(starts, places, side="right") - 1
    inside = places[(row >= 0) & (places < ends[np.maximum(row, 0)])]
    return chr(int(data[inside[0]])) if len(inside) else None
