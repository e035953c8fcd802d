"""A file is the same wherever its pieces are cut."""

from __future__ import annotations

import gzip
import io

import pytest

from planner.traffic import read_traffic, stream
from planner.traffic.stream import LIMITS, open_text

CSV = "timestamp,Model,Request tokens,Response tokens\r\n" + "".join(
    f"{i}.5,{'Größe' if i % 3 else 'b'},{i + 1},{i + 2}\r\n" for i in range(40)
)
JSONL = "".join(
    f'{{"timestamp": {i}.5, "input_length": {i + 1}, "output_length": {i + 2}, "hash_ids": [{i}]}}\n'
    for i in range(40)
)
QUOTED = CSV.replace("\r\n", "\n").replace("Größe", '"Gr""öße\n, or so"')


class Dribble:
    """Gives a few bytes at a time, as a socket may."""

    def __init__(self, content: bytes, size: int) -> None:
        self.stream = io.BytesIO(content)
        self.size = size

    def read(self, size: int = -1, /) -> bytes:
        return self.stream.read(self.size)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize(
    "content",
    [
        CSV.encode(),
        CSV.encode("utf-16"),
        CSV.encode("utf-8-sig"),
        gzip.compress(CSV.encode(), mtime=0),
        gzip.compress(CSV[:300].encode(), mtime=0) + gzip.compress(CSV[300:].encode(), mtime=0) + b"\0" * 512,
        QUOTED.encode(),
        JSONL.encode(),
        gzip.compress(JSONL.encode(), mtime=0)[:10] + gzip.compress(JSONL.encode(), mtime=0)[10:],
    ],
    ids=["csv", "utf-16", "bom", "gzip", "members", "quoted", "jsonl", "jsonl-gzip"],
)
def test_any_cut_gives_the_same_traffic(content: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE_BYTES", max(size, 8))
    traffic = read_traffic(Dribble(content, size))
    assert traffic.prompt_tokens.tolist() == list(range(1, 41))
    assert traffic.output_tokens.tolist() == list(range(2, 42))
    assert traffic.arrival_s.tolist() == [float(i) for i in range(40)]
    if traffic.request_class is not None:
        assert traffic.request_class.tolist() == [int(i % 3 > 0) for i in range(40)]
        assert traffic.class_names[0] == "b"  # as they appear


def test_lines_are_numbered_through_all_blocks() -> None:
    text = open_text(Dribble(b"a\nb\n\nc\nd", 3), LIMITS)
    blocks = list(text.blocks)
    assert b"".join(block for _, block in blocks) == b"a\nb\n\nc\nd\n"
    numbers = {
        line + offset: content
        for line, block in blocks
        for offset, content in enumerate(block.split(b"\n")[:-1])
    }
    assert numbers == {1: b"a", 2: b"b", 3: b"", 4: b"c", 5: b"d"}
