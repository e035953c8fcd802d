"""The transfer table: what it gives back, what lies between its rows, and what it refuses."""

from __future__ import annotations

import math

import pytest

from calibration.transfer import TransferTable, transfer_parts

#: KV caches of an 8B model between two hosts, published: bytes and seconds.
SIZES = (20e6, 74e6, 290e6, 1.13e9)
SECONDS = (0.54e-3, 0.92e-3, 2.51e-3, 8.84e-3)


def test_a_line_is_latency_plus_size_over_bandwidth() -> None:
    """2.15 GB take 21.5 ms at 100 GB/s and 0.69 s at 25 Gb/s."""
    assert TransferTable.line(0.0, 100e9).seconds(2.15e9) == pytest.approx(0.0215)
    assert TransferTable.line(0.0, 25e9 / 8).seconds(2.15e9) == pytest.approx(0.688)
    assert TransferTable.line(0.003, 1e9).seconds(0) == 0.003


@pytest.mark.parametrize("latency_s", [None, 0.0, 0.3e-3])
def test_measured_times_come_back(latency_s: float | None) -> None:
    table = TransferTable.measured(SIZES, SECONDS, latency_s)
    assert [table.seconds(size) for size in SIZES] == pytest.approx(SECONDS)
    assert TransferTable.from_dict(table.to_dict()) == table


def test_the_latency_taken_from_two_sizes() -> None:
    """From 20 MB to 74 MB 0.38 ms, so 0.1407 ms for the first 20 MB: 0.3993 ms of 0.54 are latency."""
    table = TransferTable.measured(SIZES, SECONDS)
    assert table.latency_s == pytest.approx((0.54e-3 - 0.38e-3 * 20 / 54,) * 4)
    assert table.peak_bytes_per_s == pytest.approx(max(table.bytes_per_s))


def test_between_and_beyond_the_rows() -> None:
    """Half way in log(size) between 1e6 and 1e8: latency half way, bandwidth the geometric mean."""
    table = TransferTable((1e6, 1e8), (0.001, 0.003), (1e9, 4e9))
    latency_s, bytes_per_s = transfer_parts(table.arrays(), 1e7)
    assert latency_s == pytest.approx(0.002)
    assert bytes_per_s == pytest.approx(2e9)
    assert table.seconds(10.0) == pytest.approx(0.001 + 10 / 1e9)
    assert table.seconds(1e9) == pytest.approx(0.003 + 1e9 / 4e9)


@pytest.mark.parametrize(
    "rows",
    [
        ((), (), ()),
        ((1.0,), (0.0, 0.0), (1.0,)),
        ((2.0, 1.0), (0.0, 0.0), (1.0, 1.0)),
        ((0.0, 1.0), (0.0, 0.0), (1.0, 1.0)),
        ((1.0, math.inf), (0.0, 0.0), (1.0, 1.0)),
        ((1.0,), (-1.0,), (1.0,)),
        ((1.0,), (0.0,), (0.0,)),
        ((1.0,), (math.nan,), (1.0,)),
    ],
)
def test_tables_that_cannot_be(rows: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"transfer table|size_bytes|latency_s|bytes_per_s"):
        TransferTable(*rows)


@pytest.mark.parametrize("seconds", [(), (1.0,), (1.0, 0.0), (1.0, math.inf)])
def test_measurements_that_cannot_be(seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="seconds"):
        TransferTable.measured((1.0, 2.0), seconds)


def test_a_line_says_how_far_it_is_off() -> None:
    """0.1 ms and 10 GB/s, the second time read 10 % too long: no line is nearer than 5 % to both ends."""
    exact = TransferTable.fitted_line([1e6, 1e8], [0.2e-3, 10.1e-3])
    assert exact.latency_s[0] == pytest.approx(1e-4)
    assert exact.bytes_per_s[0] == pytest.approx(1e10)
    assert exact.uncertainty < 1e-6
    off = TransferTable.fitted_line([1e6, 1e7, 1e8], [0.2e-3, 1.21e-3, 10.1e-3])
    assert 0.02 < off.uncertainty < 0.1
    for size, seconds in zip([1e6, 1e7, 1e8], [0.2e-3, 1.21e-3, 10.1e-3], strict=True):
        assert abs(off.seconds(size) / seconds - 1) <= off.uncertainty + 1e-9
    with pytest.raises(ValueError, match="do not grow"):
        TransferTable.fitted_line([1e6, 1e8], [2e-3, 1e-3])


def test_a_link_that_a_person_enters_keeps_its_doubt() -> None:
    link = TransferTable.link(12.5, 20e-6, 0.2)
    assert link.seconds(12.5e9) == pytest.approx(1.00002)
    assert link.entered
    assert TransferTable.from_dict(link.to_dict()) == link


@pytest.mark.parametrize("off", [-0.1, 101.0, math.nan])
def test_a_doubt_is_a_share(off: float) -> None:
    with pytest.raises(ValueError, match="uncertainty"):
        TransferTable.link(12.5, 0.0, off)


def test_ranks_travel_with_the_table():
    table = TransferTable.measured((2e6, 8e6), (1e-3, 4e-3), label="two at once", ranks=2)
    assert (TransferTable.from_dict(table.to_dict()), table.ranks) == (table, 2)
    assert table.seconds(8e6) == pytest.approx(4e-3)  # of what both move
    assert TransferTable.from_dict({k: v for k, v in table.to_dict().items() if k != "ranks"}).ranks == 1
    for ranks in (0, 4096, True, "2"):
        with pytest.raises(ValueError, match="ranks must be"):
            TransferTable.from_dict(table.to_dict() | {"ranks": ranks})
