"""Fields -> values: times, token counts and classes of a CSV, with a reason for each that is none.

What a file as a whole decides (stamps or numbers, decimal point or comma) is decided by the first row that
shows it, and a later row that disagrees is an error: a column with "1,5" and "1.200" has no sure reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.traffic.columns import MAX_CLASSES, Columns
from planner.traffic.layout import Layout
from planner.traffic.model import Floats, Integers
from planner.traffic.numbers import (
    THOUSANDS,
    Bytes,
    count_problem,
    quoted,
    read_counts,
    read_decimals,
    scalar_decimal,
)
from planner.traffic.problems import Problems
from planner.traffic.split import Batch, Field
from planner.traffic.stamps import looks_like_stamp, read_stamps
from planner.traffic.stream import decoded

_MAX_CLASS_BYTES = 128
_COMMA, _POINT = ord(","), ord(".")


@dataclass(slots=True)
class ValueReader:
    """Reads batches whose fields are prompt, output, then time and class as far as the layout has them."""

    layout: Layout
    columns: Columns
    problems: Problems
    point: str | None = None  # the decimal mark, None until a row shows it
    stamps: bool | None = None
    zoned: bool | None = None
    proven: bool = False  # no thousands separator can be meant
    doubtful: tuple[int, str, str] | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """Positions in the header of what `read` expects."""
        layout = self.layout
        names = (layout.prompt, layout.output, layout.time, layout.request_class)
        return tuple(layout.header.index(name) for name in names if name is not None)

    def read(self, batch: Batch) -> None:
        if not len(batch.lines):
            return
        fields = list(batch.fields)
        prompts = self._counts(batch, fields.pop(0), self.layout.prompt)
        outputs = self._counts(batch, fields.pop(0), self.layout.output)
        if self.layout.time is not None:
            self._times(batch, fields.pop(0), self.layout.time)
        if self.layout.request_class is not None:
            self._classes(batch, fields.pop(0), self.layout.request_class)
        self.columns.add(batch.lines, prompts, outputs)

    def _counts(self, batch: Batch, field: Field, name: str) -> Integers:
        values, good = read_counts(batch.data, *field)
        for index in np.flatnonzero(~good).tolist():
            self.problems.add(int(batch.lines[index]), name, count_problem(_text(batch.data, field, index)))
        return np.where(good, values, 0)

    def _times(self, batch: Batch, field: Field, name: str) -> None:
        if self.stamps is None:
            self.stamps = looks_like_stamp(_text(batch.data, field, 0))
        if self.stamps:
            self.columns.times.append(self._wall_clock(batch, field, name))
        else:
            self.columns.times.append(self._numbers(batch, field, name))

    def _wall_clock(self, batch: Batch, field: Field, name: str) -> Integers:
        values, zoned, good = read_stamps(batch.data, *field)
        for index in np.flatnonzero(~good).tolist():
            shown = quoted(_text(batch.data, field, index))
            message = f"{shown} is not a date and time like 2023-11-16 18:17:03.9799600"
            self.problems.add(int(batch.lines[index]), name, message)
        if self.zoned is None and good.any():
            self.zoned = bool(zoned[int(good.argmax())])
        for index in np.flatnonzero(good & (zoned != self.zoned)).tolist():
            first = "have" if self.zoned else "do not have"
            message = f"{quoted(_text(batch.data, field, index))}: the rows before {first} a time zone"
            self.problems.add(int(batch.lines[index]), name, message, "mixed_zones")
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
        long = widths > _MAX_CLASS_BYTES
        for index in np.flatnonzero(long).tolist():
            self.problems.add(int(batch.lines[index]), name, f"longer than {_MAX_CLASS_BYTES} characters")
        width = int(np.where(long, 0, widths).max(initial=1)) or 1
        place = np.arange(width)
        inside = place < widths[:, None]
        cells = np.where(inside, batch.data[np.minimum(starts[:, None] + place, len(batch.data) - 1)], 0)
        texts = cells.astype(np.uint8).view(f"S{width}")[:, 0]
        names, first, inverse = np.unique(texts, return_index=True, return_inverse=True)
        codes = np.zeros(len(names), np.int16)
        for index in np.argsort(first).tolist():  # numbered as they appear, wherever blocks are cut
            code = self.columns.class_code(decoded(bytes(names[index])))
            if code is None:
                message = f"more than {MAX_CLASSES:,} different values"
                self.problems.add(int(batch.lines[first[index]]), name, message, "too_many_classes")
                self.problems.stop()
            codes[index] = code
        self.columns.classes.append(codes[inverse])


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
