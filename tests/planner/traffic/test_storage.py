from __future__ import annotations

import io
import zipfile
from dataclasses import fields, replace

import numpy as np
import pytest

from planner.traffic import Finding, PrefixHashes, Traffic, TrafficError, from_npz_bytes, to_npz_bytes
from planner.traffic import storage as storage_module

FULL = Traffic(
    arrival_s=np.array([0.0, 0.1, 0.1]),
    prompt_tokens=np.array([5, 6, 7]),
    output_tokens=np.array([1, 2, 3]),
    source="três.csv",
    format="azure",
    max_tokens=np.array([1, 20, 30]),
    priority=np.array([0, -1, 2]),
    request_class=np.array([0, 1, 0], np.int16),
    class_names=("a", "<b>"),
    prefix_hashes=PrefixHashes(np.array([1, 2**64 - 1], np.uint64), np.array([0, 1, 1, 2]), 512),
    rows_read=4,
    recipe={"seed": 1, "options": {"x": None}},
    warnings=(Finding("zero_output", "one", 1, (3,)),),
)


def assert_same(one: Traffic, other: Traffic) -> None:
    for field in fields(Traffic):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert np.array_equal(a, b), field.name
            assert a.dtype == b.dtype, field.name
        elif isinstance(a, PrefixHashes):
            assert np.array_equal(a.flat, b.flat)
            assert np.array_equal(a.offsets, b.offsets)
            assert a.block_tokens == b.block_tokens
        else:
            assert a == b, field.name


def test_round_trip_keeps_everything() -> None:
    assert_same(FULL, from_npz_bytes(to_npz_bytes(FULL)))


def test_round_trip_without_the_optional_parts() -> None:
    bare = replace(
        FULL, max_tokens=None, priority=None, request_class=None, class_names=(), prefix_hashes=None
    )
    assert_same(bare, from_npz_bytes(to_npz_bytes(bare)))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", b"TIMESTAMP,ContextTokens\n"])
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(TrafficError):
        from_npz_bytes(content)


def test_a_pickle_inside_is_refused_without_running_it() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, description=np.array([{"version": 1}], dtype=object))
    with pytest.raises(TrafficError, match="allow_pickle"):
        from_npz_bytes(buffer.getvalue())


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    with zipfile.ZipFile(io.BytesIO(to_npz_bytes(FULL))) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    shorter = io.BytesIO()
    np.save(shorter, np.array([5, 6]))
    entries["prompt_tokens.npy"] = shorter.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(TrafficError, match="prompt_tokens"):
        from_npz_bytes(buffer.getvalue())


def test_an_archive_that_unpacks_too_far_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "MAX_UNPACKED_BYTES", 100)
    with pytest.raises(TrafficError) as caught:
        from_npz_bytes(to_npz_bytes(FULL))
    assert caught.value.to_dict()["limit"] == {"what": "unpacked_bytes", "value": 100}


@pytest.mark.parametrize(
    "change",
    [
        {"arrival_s": np.array([0.0, 2.0, 1.0])},
        {"arrival_s": np.array([1.0, 2.0, 3.0])},
        {"arrival_s": np.array([0.0, 2.0, np.nan])},
        {"output_tokens": np.array([1, 0, 1])},
        {"prompt_tokens": np.array([1.0, 2.0, 3.0])},
        {"request_class": np.array([0, 2, 0], np.int16)},
        {"prefix_hashes": PrefixHashes(np.zeros(1, np.uint64), np.array([0, 1, 1, 2]))},
        {"prefix_hashes": PrefixHashes(np.zeros(2, np.uint64), np.array([0, 2, 1, 2]))},
    ],
)
def test_traffic_that_breaks_its_own_rules_cannot_be_made(change: dict[str, object]) -> None:
    with pytest.raises(TrafficError):
        replace(FULL, **change)  # type: ignore[arg-type]


def test_the_arrays_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        FULL.arrival_s[0] = 1.0
