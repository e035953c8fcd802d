"""Wall-clock stamps in columns of bytes: `2023-11-16 18:17:03.9799600`, many rows at a time.

Accepted: YYYY-MM-DD, a space or T, hh:mm:ss, optionally a fraction of up to nine digits, optionally a zone
(Z, +hh:mm, +hhmm, +hh). Azure's traces have seven digits: strptime refuses them and fromisoformat cuts them
to six, so stamps are integers of nanoseconds here and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.traffic.model import Integers
from planner.traffic.numbers import Bytes, Mask, Positions, quoted
from planner.traffic.stream import decoded

_DIGITS = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class WallClock:
    """Reads a column of stamps in the order of the file: all have a zone or none has, unless `utc_offset` says what
    zone those without one are in."""

    utc_offset: str | None = None
    zoned: bool | None = None

    def read(
        self, data: Bytes, starts: Positions, ends: Positions
    ) -> tuple[Integers, list[tuple[int, str, str]]]:
        """int64 nanoseconds since 1970, and (index, message, code) of every field that has none."""
        values, zoned, good = read_stamps(data, starts, ends)

        def shown(index: int) -> str:
            return quoted(decoded(data[int(starts[index]) : int(ends[index])].tobytes()))

        wrong = [
            (index, f"{shown(index)} is not a date and time like 2023-11-16 18:17:03.9799600", "bad_value")
            for index in np.flatnonzero(~good).tolist()
        ]
        if self.utc_offset is not None:
            return np.where(zoned, values, values - _offset_ns(self.utc_offset)), wrong
        if self.zoned is None and good.any():
            self.zoned = bool(zoned[int(good.argmax())])
        first = "have" if self.zoned else "do not have"
        wrong += [
            (index, f"{shown(index)}: the rows before {first} a time zone; say what zone those without one are in "
             "(utc_offset)", "mixed_zones")
            for index in np.flatnonzero(good & (zoned != self.zoned)).tolist()
        ]  # fmt: skip
        return values, wrong

    def read_texts(self, texts: Sequence[str]) -> tuple[Integers, list[tuple[int, str, str]]]:
        """The same of texts."""
        cells = [text.encode(errors="replace") for text in texts]
        ends = np.cumsum([len(cell) + 1 for cell in cells]) - 1
        starts = np.concatenate(([0], ends[:-1] + 1))
        return self.read(np.frombuffer(b"\n".join(cells) + b"\n", np.uint8), starts, ends)


def _offset_ns(offset: str) -> int:
    """+02:00 in nanoseconds; ImportOptions has checked its form."""
    seconds = int(offset[1:3]) * 3_600 + int(offset[4:6]) * 60
    return (-seconds if offset[0] == "-" else seconds) * _SECOND_NS


def looks_like_stamp(text: str) -> bool:
    """A date and a time of day, whatever their form: a column that starts so holds stamps."""
    return ("-" in text[1:] and ":" in text) or "/" in text


def read_stamps(data: Bytes, starts: Positions, ends: Positions) -> tuple[Integers, Mask, Mask]:
    """int64 nanoseconds since 1970 (UTC, or local where there is no zone), where there is a zone, where
    the field is a valid stamp of the years 1970 to 2199."""
    widths = ends - starts
    good = (widths >= 19) & (widths <= 35)
    if not good.any():
        return np.zeros(len(starts), np.int64), np.zeros(len(starts), np.bool_), good
    safe = np.where(good, starts, starts[int(good.argmax())])
    safe_ends = np.where(good, ends, ends[int(good.argmax())])
    layout = data[safe[:, None] + np.arange(19)]
    digits = (layout[:, _DIGITS] - np.uint8(48)).astype(np.int64)
    good &= (digits <= 9).all(axis=1)
    for position, allowed in ((4, b"-"), (7, b"-"), (10, b" T"), (13, b":"), (16, b":")):
        good &= np.isin(layout[:, position], np.frombuffer(allowed, np.uint8))
    year = digits[:, 0] * 1000 + digits[:, 1] * 100 + digits[:, 2] * 10 + digits[:, 3]
    month, day, hour, minute, second = (digits[:, k] * 10 + digits[:, k + 1] for k in (4, 6, 8, 10, 12))
    good &= (year >= 1970) & (year < 2200) & (month >= 1) & (month <= 12) & (day >= 1)
    good &= (hour < 24) & (minute < 60) & (second < 60)
    months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first_day = months.astype("datetime64[D]").astype(np.int64)
    good &= day <= (months + 1).astype("datetime64[D]").astype(np.int64) - first_day
    seconds = (first_day + day - 1) * 86_400 + hour * 3_600 + minute * 60 + second
    fraction_ns, cursor, fraction_good = _fraction(data, safe + 19, safe_ends)
    offset_s, zoned, zone_good = _zone(data, cursor, safe_ends)
    good &= fraction_good & zone_good
    value = (seconds - offset_s) * _SECOND_NS + fraction_ns
    return np.where(good, value, 0), zoned & good, good


def _fraction(data: Bytes, cursor: Positions, ends: Positions) -> tuple[Integers, Positions, Mask]:
    """Nanoseconds, where the fraction ends, and where it is sound (also where there is none)."""
    last = len(data) - 1
    present = (cursor < ends) & (data[np.minimum(cursor, last)] == 46)
    running = present
    value = np.zeros(len(cursor), np.int64)
    count = np.zeros(len(cursor), np.int64)
    for position in range(1, 10):
        place = cursor + position
        digit = data[np.minimum(place, last)] - np.uint8(48)
        running = running & (place < ends) & (digit <= 9)
        if not running.any():
            break
        value = np.where(running, value * 10 + digit, value)
        count += running
    return value * 10 ** (9 - count), cursor + present + count, ~present | (count > 0)


def _zone(data: Bytes, cursor: Positions, ends: Positions) -> tuple[Integers, Mask, Mask]:
    """Seconds east of UTC, where a zone is given, and where what is left is a zone or nothing."""
    offset_s = np.zeros(len(cursor), np.int64)
    width = ends - cursor
    good = width == 0
    zoned = ~good
    letter = (width == 1) & np.isin(data[np.minimum(cursor, len(data) - 1)], np.frombuffer(b"Zz", np.uint8))
    good |= letter
    for form, places in ((6, (1, 2, 4, 5)), (5, (1, 2, 3, 4)), (3, (1, 2))):
        rows = np.flatnonzero(width == form)
        if not len(rows):
            continue
        zone = data[cursor[rows][:, None] + np.arange(form)]
        digits = (zone[:, places] - np.uint8(48)).astype(np.int64)
        sound = np.isin(zone[:, 0], np.frombuffer(b"+-", np.uint8)) & (digits <= 9).all(axis=1)
        if form == 6:
            sound &= zone[:, 3] == 58
        hours = digits[:, 0] * 10 + digits[:, 1]
        minutes = digits[:, 2] * 10 + digits[:, 3] if form > 3 else np.zeros(len(rows), np.int64)
        good[rows] = sound & (hours < 24) & (minutes < 60)
        offset_s[rows] = np.where(zone[:, 0] == 45, -1, 1) * (hours * 3_600 + minutes * 60)
    return offset_s, zoned, good
