import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.sources import step_csv
from calibration.sources.step_csv import StepCsvError, read_step_csv
from calibration.steptime import Chunk, StepShape

HEADER = "prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms"
GOOD = f"{HEADER}\n0,0,2,100,16.5\n512,64,0,0,40\n512,64,2,100,61.25\n"


def read(text, **options):
    data = text if isinstance(text, bytes) else text.encode()
    return read_step_csv(io.BytesIO(data), **options)


def problems(text, **options):
    with pytest.raises(StepCsvError) as caught:
        read(text, **options)
    return [(p.line, p.column) for p in caught.value.problems]


def test_decode_prefill_and_mixed_rows_become_shapes_and_seconds():
    decode, prefill, mixed = read(GOOD)
    assert decode.shape == StepShape((100, 100))
    assert prefill.shape == StepShape((), (Chunk(512, 64),))
    assert mixed.shape == StepShape((100, 100), (Chunk(512, 64),))
    assert [s.seconds for s in (decode, prefill, mixed)] == [(0.0165,), (0.04,), (0.06125,)]
    assert {s.role for s in (decode, prefill, mixed)} == {"fit"}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\n\n") + "  \n",
        GOOD.rstrip("\n"),
        GOOD.replace(",", " , "),
        GOOD.upper().replace("STEP_MS", "Step_Ms"),
        GOOD.replace("512,", "512.0,"),
        GOOD.replace("40", "4e1"),
        GOOD.replace("step_ms", "step_ms,note").replace("5\n", "5,a\n").replace("40\n", "40,\n"),
        "step_s,decode_seqs,decode_context,prefill_tokens,prefill_context\n"
        "0.0165,2,100,0,0\n0.04,0,0,512,64\n0.06125,2,100,512,64\n",
        gzip.compress(GOOD.encode(), mtime=0),
        gzip.compress(GOOD[:70].encode(), mtime=0) + gzip.compress(GOOD[70:].encode(), mtime=0),
    ],
    ids=["bom", "crlf", "blank lines", "no last newline", "blanks", "upper case", "whole floats", "exponent",
         "further column", "order and step_s", "gzip", "joined gzip"],
)  # fmt: skip
def test_accepted_by_the_written_rules(text):
    assert read(text) == read(GOOD)


def test_rows_of_one_shape_are_repeats():
    samples = read(f"{HEADER}\n0,0,2,100,16\n64,0,0,0,20\n0,0,2,100,18\n0,0,2,100,17\n")
    assert [s.seconds for s in samples] == [(0.016, 0.018, 0.017), (0.02,)]


def test_a_path_and_a_read_file_work_too(tmp_path):
    path = tmp_path / "steps.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode(), mtime=0))
    assert read_step_csv(path) == read_step_csv(str(path)) == read(GOOD)
    file = io.BytesIO(GOOD.encode())
    file.read()
    assert read_step_csv(file) == read(GOOD)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("0,0,2,100,nan", "step_ms"),
        ("0,0,2,100,inf", "step_ms"),
        ("0,0,2,100,-1", "step_ms"),
        ("0,0,2,100,0", "step_ms"),
        ("0,0,2,100,1e400", "step_ms"),
        ("0,0,2,100,", "step_ms"),
        ("0,0,2,100,fast", "step_ms"),
        ("0,0,2,100,1_0", "step_ms"),
        ("0,0,2,100,\u0661", "step_ms"),
        ('0,0,2,100,"16"', "step_ms"),
        ("0,0,2,-1,16", "decode_context"),
        ("0,0,1.5,100,16", "decode_seqs"),
        ("0,0,+2,100,16", "decode_seqs"),
        ("0,0,1e2,100,16", "decode_seqs"),
        ("0,0,999999999,100,16", "decode_seqs"),
        ("99999999999999999999,0,2,100,16", "prefill_tokens"),
        ("0,7,2,100,16", "prefill_context"),
        ("64,7,0,100,16", "decode_context"),
        ("0,0,0,0,16", ""),
        ("0,0,2,100", ""),
        ("0,0,2,100,16,5", ""),
        ("0;0;2;100;16", ""),
    ],
)
def test_a_bad_row_is_refused_at_its_place(row, column):
    assert problems(f"{HEADER}\n0,0,2,100,16\n\n{row}\n") == [(4, column)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [(1, "")]),
        ("\n \n", [(1, "")]),
        ("\ufeff", [(1, "")]),
        (HEADER, [(1, "")]),
        (HEADER.replace(",", ";") + "\n0;0;1;1;1\n", [(1, "")]),
        ("prefill_tokens,decode_seqs,decode_context,step_ms\n1,1,1,1\n", [(1, "prefill_context")]),
        (HEADER + ",step_s\n", [(1, "step_ms")]),
        (HEADER.replace(",step_ms", "") + "\n", [(1, "step_ms")]),
        (HEADER + ",decode_seqs\n", [(1, "decode_seqs")]),
        (b"\xff\xfe" + GOOD.encode(), [(1, "")]),
        (GOOD.encode() + b"\xe9\n", [(5, "")]),
        (gzip.compress(GOOD.encode(), mtime=0)[:-12], [(1, "")]),
        (b"\x1f\x8bnot gzip", [(1, "")]),
    ],
    ids=["empty", "blank", "only a bom", "only a header", "semicolons", "missing column", "two times", "no time",
         "column twice", "utf-16", "latin-1", "cut gzip", "false gzip"],
)  # fmt: skip
def test_a_file_that_is_no_step_table_is_refused(text, expected):
    assert problems(text) == expected


def test_every_bad_row_is_named_and_the_rest_only_counted():
    text = HEADER + "\n" + "0,0,1,1,x\n" * 1500
    with pytest.raises(StepCsvError) as caught:
        read(text)
    error = caught.value
    assert (error.count, len(error.problems)) == (1500, 1000)
    assert error.lines(2) == [
        "line 2, column step_ms: must be a number above 0, is 'x'",
        "line 3, column step_ms: must be a number above 0, is 'x'",
        "... and 1498 more",
    ]


def test_sizes_are_bounded(monkeypatch):
    assert problems(GOOD, max_bytes=50) == [(1, "")]
    assert problems(gzip.compress(b"0" * 10**6, mtime=0), max_bytes=10_000) == [(1, "")]
    monkeypatch.setattr(step_csv, "MAX_ROWS", 2)
    assert problems(GOOD) == [(4, "")]
    monkeypatch.setattr(step_csv, "MAX_ROWS", 3)
    monkeypatch.setattr(step_csv, "MAX_DECODES", 3)
    assert problems(GOOD) == [(4, "decode_seqs")]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_bytes_give_samples_or_an_error_with_a_place(data):
    whole = GOOD.encode() if data.draw(st.booleans()) else gzip.compress(GOOD.encode(), mtime=0)
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated)))
        if data.draw(st.booleans()):
            mutated[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        else:
            mutated[position:position] = data.draw(
                st.sampled_from([b",", b"\n", b"\r", b"0", b"9", b".", b'"', b"-"])
            )
    try:
        samples = read(bytes(mutated))
    except StepCsvError as error:
        assert error.count >= len(error.problems) >= 1
        assert all(p.line >= 1 and p.message for p in error.problems)
        return
    assert 1 <= len(samples) <= 4
    for sample in samples:
        assert all(0 < s <= step_csv.LONGEST_S for s in sample.seconds)
        n, b, *_ = sample.shape.features
        assert n >= max(1, b)
