"""CSV that a spreadsheet opens without running it."""

from __future__ import annotations

import csv
import io

import pytest

from calibration import exports


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_starts_like_a_formula_is_made_harmless(start: str) -> None:
    text = f'{start}cmd|" /C calc"!A0'
    rows = list(csv.reader(io.StringIO(exports.csv_text(["name"], [[text]]), newline="")))
    assert rows == [["name"], [f"'{text}"]]


@pytest.mark.parametrize("value", [-1.5, -3, 0.1, "plain", "a=b", "", None])
def test_numbers_and_other_texts_stay(value: object) -> None:
    assert exports.safe_cell(value) == value


def test_headers_are_cells_as_well() -> None:
    assert exports.csv_text(["=1+1"], []) == "'=1+1\n"
