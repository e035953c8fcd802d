"""Quoting, against Python's csv module: whoever wrote a table gets the same table back."""

from __future__ import annotations

import csv
import io

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

from planner.traffic import TrafficError, read_traffic, stream

NOTES = st.text(alphabet='a",;\n\r ', max_size=6)
ROWS = st.lists(st.tuples(NOTES, st.integers(1, 99_999), NOTES, st.integers(1, 999)), min_size=1, max_size=12)
QUOTING = st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC])


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    ROWS,
    QUOTING,
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([16, 1 << 20]),
)
def test_what_the_csv_module_writes_is_read(
    rows: list[tuple[str, int, str, int]], quoting: int, delimiter: str, line_end: str, piece: int
) -> None:
    if quoting == csv.QUOTE_MINIMAL:  # the writer leaves a lone carriage return bare, and that is refused
        rows = [(a.replace("\r", ""), prompt, b.replace("\r", ""), output) for a, prompt, b, output in rows]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=line_end)  # type: ignore[arg-type]
    writer.writerows([("note", "prompt_tokens", "more", "output_tokens"), *rows])
    with MonkeyPatch.context() as patch:
        patch.setattr(stream, "PIECE_BYTES", piece)
        traffic = read_traffic(io.BytesIO(text.getvalue().encode()), rate_per_s=1.0)
    assert traffic.prompt_tokens.tolist() == [row[1] for row in rows]
    assert traffic.output_tokens.tolist() == [row[3] for row in rows]


LINES = st.lists(st.text(alphabet='12",  \r', max_size=10), min_size=1, max_size=5)


@settings(max_examples=1_500, derandomize=True, deadline=None)
@given(LINES)
def test_any_quoting_is_read_as_the_csv_module_reads_it_or_refused(lines: list[str]) -> None:
    content = "\n".join(["prompt_tokens,output_tokens", *lines]) + "\n"
    try:
        traffic = read_traffic(io.BytesIO(content.encode()), rate_per_s=1.0)
    except TrafficError:
        return
    table = csv.reader(io.StringIO(content, newline=""), strict=True)
    rows = [row for row in table if len(row) > 1 or "".join(row).strip(" ")][1:]
    found = zip(traffic.prompt_tokens.tolist(), traffic.output_tokens.tolist(), strict=True)
    assert list(found) == [(int(prompt), int(output)) for prompt, output in rows]
