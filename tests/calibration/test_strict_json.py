"""JSON without what RFC 8259 has not."""

import json

import pytest

from calibration import strict_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "holds NaN"),
        ("[-Infinity]", "holds -Infinity"),
        ("1e999", "holds 1e999, which is not finite"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "is not JSON"),
        (b"\xff", "is not JSON"),
        ("", "is not JSON"),
    ],
    ids=["NaN", "infinity", "too large", "deep", "5000 digits", "bytes", "empty"],
)
def test_what_is_not_json_is_said_in_words(text, message):
    with pytest.raises(strict_json.JsonError, match=message):
        strict_json.read(text)


def test_numbers_that_json_has_not_are_written_as_null():
    value = {"a": [float("nan"), 1.5, (float("inf"), True)], "b": {"c": -float("inf")}, "d": None, "e": "NaN"}
    told = json.loads(strict_json.write(value), parse_constant=pytest.fail)
    assert told == {"a": [None, 1.5, [None, True]], "b": {"c": None}, "d": None, "e": "NaN"}
