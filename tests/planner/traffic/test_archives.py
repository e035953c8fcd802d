"""Zstandard and Parquet: the same traffic as the plain file, and refusals of what is damaged or too large."""

from __future__ import annotations

import gzip
import io
import sys

import pytest
from backports import zstd

from planner.traffic import Limits, TooLarge, TrafficError, read_traffic

CSV = b"timestamp,input_length,output_length\n0,10,20\n1,11,21\n2.5,12,22\n"


def reading(content: bytes, limits: Limits | None = None):
    return read_traffic(io.BytesIO(content), limits=limits or Limits())


@pytest.mark.parametrize("cut", [0, 1, 20, len(CSV)])
def test_frames_are_read_as_the_plain_file(cut: int) -> None:
    traffic = reading(zstd.compress(CSV[:cut]) + zstd.compress(CSV[cut:]))
    assert traffic.arrival_s.tolist() == [0.0, 1.0, 2.5]
    assert traffic.recipe["compression"] == "zstd"


@pytest.mark.parametrize(
    "content",
    [
        zstd.compress(CSV)[:-3],
        zstd.compress(CSV) + b"rest",
        b"\x28\xb5\x2f\xfdnonsense",
        zstd.compress(CSV)[:4],
    ],
)
def test_a_damaged_archive_is_refused(content: bytes) -> None:
    with pytest.raises(TrafficError) as caught:
        reading(content)
    assert caught.value.errors[0].code == "bad_archive"


def test_a_frame_that_grows_ten_thousandfold_is_stopped_on_the_way() -> None:
    bomb = zstd.compress(CSV + b"\n" * 40_000_000)
    assert len(bomb) < 100_000
    with pytest.raises(TooLarge) as caught:
        reading(bomb, Limits(unpacked_bytes=2 << 20))
    assert caught.value.what == "unpacked_bytes"


def test_an_archive_in_an_archive_is_not_unpacked_twice() -> None:
    with pytest.raises(TrafficError):
        reading(gzip.compress(gzip.compress(CSV, mtime=0), mtime=0))


def test_parquet_says_how_to_read_it_where_its_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing for this test, wherever it runs."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TrafficError, match=r"requirements-parquet\.lock") as caught:
        reading(b"PAR1....PAR1")
    assert caught.value.errors[0].code == "parquet_not_installed"


def test_parquet_is_read_as_its_csv() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({
        "timestamp": pyarrow.array([0, 52_000_900], pyarrow.timestamp("ns")), "input_tokens": [10, 11],
        "output_tokens": [20, 21], "hash_ids": [[1], [2]], "model": ["a", "b"],
    })  # fmt: skip
    out = io.BytesIO()
    parquet.write_table(table, out)
    traffic = reading(out.getvalue())
    assert traffic.arrival_s.tolist() == [0.0, 0.0520009]
    assert traffic.class_names == ("a", "b")
    assert traffic.recipe["compression"] == "parquet"
    with pytest.raises(TrafficError) as caught:
        reading(out.getvalue()[:-20])
    assert caught.value.errors[0].code == "bad_archive"
    with pytest.raises(TooLarge):
        reading(out.getvalue(), Limits(rows=1))
