"""Columns of bytes against Python's own reading of the same text, one field at a time."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.traffic.model import MAX_TOKENS
from planner.traffic.numbers import count_problem, read_counts, read_decimals, scalar_decimal, trimmed
from planner.traffic.stamps import read_stamps

NUMBERISH = st.text(alphabet="0123456789.,-+eE xNa_", max_size=22)
PLAIN = st.from_regex(r"[0-9]{1,12}(\.[0-9]{0,12})?", fullmatch=True)


def laid_out(fields: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells = [field.encode() for field in fields]
    ends = np.cumsum([len(cell) + 1 for cell in cells]) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    return np.frombuffer(b"\n".join(cells) + b"\n", np.uint8), starts, ends


@given(st.lists(NUMBERISH | st.integers(0, 10**20).map(str), min_size=1, max_size=8))
def test_counts_are_digits_and_what_int_makes_of_them(fields: list[str]) -> None:
    values, good = read_counts(*laid_out(fields))
    for field, value, sound in zip(fields, values.tolist(), good.tolist(), strict=True):
        expected = re.fullmatch(r"[0-9]{1,18}", field) is not None and int(field) <= MAX_TOKENS
        assert sound == expected, field
        if sound:
            assert value == int(field)
        else:
            assert count_problem(field)


@given(st.lists(NUMBERISH | PLAIN | st.floats(0, 1e12).map(repr), min_size=1, max_size=8))
def test_times_are_what_float_makes_of_them(fields: list[str]) -> None:
    values, good = read_decimals(*laid_out(fields))
    for field, value, sound in zip(fields, values.tolist(), good.tolist(), strict=True):
        alone = scalar_decimal(field)
        if sound:
            assert value == float(field) == alone
        grammar = re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", field)
        valid = grammar is not None and math.isfinite(float(field)) and 0 <= float(field) <= 1e20
        assert isinstance(alone, float) == valid, field
        assert sound <= valid


def test_the_usual_forms_take_the_fast_way() -> None:
    _, good = read_decimals(*laid_out(["0", "12", "0.052", "3435.948056", "1700000000.25", "5."]))
    assert good.all()


@given(st.lists(st.text(alphabet=" 07", max_size=12), min_size=1, max_size=6))
def test_spaces_around_a_field_are_no_part_of_it(fields: list[str]) -> None:
    data, starts, ends = laid_out(fields)
    starts, ends = trimmed(data, starts, ends)
    cut = [bytes(data[start:end]).decode() for start, end in zip(starts, ends, strict=True)]
    assert cut == [field.strip(" ") for field in fields]


MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31), timezones=st.none() | st.just(UTC))


@given(st.lists(st.tuples(MOMENTS, st.sampled_from(" T"), st.integers(0, 9)), min_size=1, max_size=6))
def test_stamps_are_what_datetime_makes_of_them(moments: list[tuple[datetime, str, int]]) -> None:
    fields, expected = [], []
    for moment, separator, digits in moments:
        fraction = f"{moment.microsecond:06d}987"[:digits]
        zone = "" if moment.tzinfo is None else "+00:00"
        fields.append(
            moment.strftime("%Y-%m-%d").zfill(10)
            + separator
            + moment.strftime("%H:%M:%S")
            + (f".{fraction}" if digits else "")
            + zone
        )
        whole = moment.replace(microsecond=0, tzinfo=UTC)
        expected.append(int(whole.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0))
    values, zoned, good = read_stamps(*laid_out(fields))
    assert good.all(), fields
    assert values.tolist() == expected
    assert zoned.tolist() == [moment.tzinfo is not None for moment, _, _ in moments]


def test_zones_move_to_utc() -> None:
    fields = [f"2024-02-29T12:00:00{zone}" for zone in ("Z", "+02:00", "-0530", "+14", "z", "")]
    values, zoned, good = read_stamps(*laid_out(fields))
    hours = ((values - values[0]) / 3.6e12).tolist()
    assert good.all()
    assert hours == [0, -2, 5.5, -14, 0, 0]
    assert zoned.tolist() == [True] * 5 + [False]


def test_what_is_no_stamp() -> None:
    fields = [
        "2023-02-29 00:00:00", "2100-02-29 00:00:00", "2023-04-31 00:00:00", "2023-13-01 00:00:00",
        "2023-00-01 00:00:00", "2023-01-00 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:60:00",
        "2023-01-01 00:00:60", "1969-12-31 23:59:59", "2200-01-01 00:00:00", "2023-1-1 0:00:00",
        "16.11.2023 18:17:03", "2023-11-16 18:17", "2023-11-16", "2023-11-16 18:17:03.",
        "2023-11-16 18:17:03.1234567890", "2023-11-16 18:17:03,5", "2023-11-16 18:17:03 ", "2023/11/16 18:17:03",
        "2023-11-16 18:17:03+25:00", "2023-11-16 18:17:03+0100x", "2023-11-16 18:17:03UTC", "", "x",
        "2023-11-16 18:17:03.5Zjunk", "2023-11-16 18:17:03+1", "２０23-11-16 18:17:03",
    ]  # fmt: skip
    assert not read_stamps(*laid_out(fields))[2].any()
    assert not read_stamps(*laid_out(fields[:1]))[2].any()
    assert read_stamps(*laid_out(["2024-02-29 23:59:59.5", *fields]))[2].tolist() == [True] + [False] * len(
        fields
    )
