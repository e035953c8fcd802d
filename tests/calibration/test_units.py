"""Numbers leave with their unit, and what is no number leaves as a dash."""

from __future__ import annotations

import math

import pytest

from calibration.templatetags import units


@pytest.mark.parametrize(
    ("value_s", "shown"),
    [
        (0, "0.0 s"), (0.44, "0.4 s"), (12.4, "12 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"),
        (7_800, "2 h 10 min"), (None, "–"), (math.nan, "–"), ("x", "–"),
    ],
)  # fmt: skip
def test_duration(value_s: object, shown: str) -> None:
    assert units.duration(value_s).replace("\u00a0", " ") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (512, "512 B"), (1024, "1.00 KiB"), (65_029_120, "62.0 MiB"), (16_060_522_496, "15.0 GiB"),
        (1024**4 * 2, "2.00 TiB"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_memory_is_binary(value: object, shown: str) -> None:
    assert units.binary(value).replace("\u00a0", " ") == shown


def test_three_significant_digits() -> None:
    assert [units.ms(s).replace("\u00a0", " ") for s in (0.0000123, 0.01234, 1.234, 0)] == [
        "0.0123 ms",
        "12.3 ms",
        "1,234 ms",
        "0 ms",
    ]
    assert units.big(8_030_261_248).replace("\u00a0", " ") == "8.03 billion"
    assert units.big(32_514_560).replace("\u00a0", " ") == "32.5 million"
    assert units.count(41_408) == "41,408"


def test_percentages() -> None:
    assert units.percent(0.0312).replace("\u00a0", " ") == "3.1 %"
    assert units.bare_percent(0.0312) == "3.1"
    assert units.bare_signed_percent(-0.0148) == "−1.5"
    assert units.bare_percent(None) == "–"


def test_units_of_keys_are_told() -> None:
    assert units.readable("free_bytes") == "Free [bytes]"
    assert units.readable("rate_per_s") == "Rate [1/s]"
    assert units.readable("max_step_tokens") == "Max step [tokens]"
    assert units.readable("sha256") == "SHA-256"
    assert units.readable("interarrival_cv") == "Interarrival CV"
    assert units.readable("observed engine_usage cpu_s") == "Observed engine usage CPU [s]"
    assert units.readable("<b>") == "<b>"
    assert units.readable("max_batch") == "Max batch [sequences]"


def test_columns_with_units_in_their_headers() -> None:
    assert units.bare_ms(0.0876) == "87.6"
    assert units.bare_ms(None) == "–"
    assert units.decimal(13.149) == "13.1"
    assert units.decimal(2.2e-16) == units.decimal(-1e-12) == "0"
    assert units.decimal(6e-9) == "0.000000006"
    assert units.decimal(None) == "–"


def test_rates_and_signs() -> None:
    assert units.rate(2.5664) == "2.57\u00a0/s"
    assert units.rate(None) == "–"
    assert units.signs("TTFT p95 <= 2 s < 3 s") == "TTFT p95 ≤ 2 s < 3 s"
