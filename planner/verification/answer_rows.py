"""What each request to a running server saw, one row a request, as it is kept and handed out.

Times in seconds. `lag_s`: how late the client itself sent it; TTFT and E2E run from when it was due (measured.py).
Tokens are counted by the server's usage where it told, else by chunks. None: it never came to that.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from planner.verification.stream import Answer

COLUMNS: Final = (
    "request", "due_s", "lag_s", "ttft_s", "tpot_s", "largest_gap_s", "e2e_s", "tokens", "asked_tokens", "chunks",
    "status", "error",
)  # fmt: skip
DIGITS: Final = 6  # of seconds: a microsecond


def row_of(answer: Answer) -> list[Any]:
    """The COLUMNS of one."""
    chunks, ok = answer.chunk_s, answer.ok
    gaps = [later - earlier for earlier, later in pairwise(chunks)]
    per_token = (chunks[-1] - chunks[0]) / (answer.tokens - 1) if ok and answer.tokens > 1 and gaps else None
    seconds = (
        answer.due_s,
        answer.sent_s - answer.due_s if answer.sent_s >= 0 else None,
        chunks[0] - answer.due_s if chunks else None,
        per_token,
        max(gaps) if gaps else None,
        chunks[-1] - answer.due_s if ok else None,
    )
    told = [None if value is None else round(value, DIGITS) for value in seconds]
    error = answer.error or ("" if ok else "no token came")
    counted = answer.tokens if chunks else 0
    return [answer.index, *told, counted, answer.asked_tokens, len(chunks), answer.status or None, error]


def packed(answers: Sequence[Answer]) -> bytes:
    """All of them, to be kept."""
    return gzip.compress(json.dumps([row_of(answer) for answer in answers]).encode(), mtime=0)


def unpacked(data: bytes) -> list[list[Any]]:
    """Inverse of `packed`: a row of COLUMNS each."""
    rows: list[list[Any]] = json.loads(gzip.decompress(data))
    return rows
