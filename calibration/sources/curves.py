"""A published curve's file told by what is in it, and two files of one publication read as one set of samples.

    npz with prefill_isl and/or x_kv_usage                   Dynamo's profile
    CSV with batch_num_decode_tokens                         Sarathi, figure 2
    CSV with prompt_time and token_time                      Splitwise's table

What each lacks and was taken for granted is said in `Curves.granted`; what only the caller can know (which hardware of
several, the decodes' context) is asked for by name. Tokens, seconds. The formats are those of `published`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from calibration.capacity import MAX_POOL_TOKENS
from calibration.sources.npz import npz_arrays, npz_names
from calibration.sources.published import (
    MAX_BYTES,
    CurveError,
    read_dynamo_decode,
    read_dynamo_prefill,
    read_sarathi,
    read_splitwise,
)
from calibration.sources.unpacking import UnpackError, read_bytes
from calibration.steptime.samples import StepSample

DYNAMO, SARATHI, SPLITWISE = "Dynamo's profile", "Sarathi, figure 2", "Splitwise's table"
GRANTED = {
    "prefill_isl": "a prompt's TTFT alone is one step; the front end's share is in it",
    "x_kv_usage": "a gap between tokens is a step of alike sequences at the context of the middle of the output",
    SARATHI: "decode contexts are not in the file: every sequence had {context_tokens:,} tokens",
    SPLITWISE: "a mean gap is the step at the context of the middle of the output",
}


class NeedsWord(ValueError):
    """The files leave open what only the user knows: `field` names it, `message` asks."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


@dataclass(frozen=True, slots=True)
class Curves:
    """`kv_tokens` and `tensor_parallel` where a file says them. `hardware`: the rows that were read; "" without any."""

    form: str
    samples: list[StepSample]
    granted: tuple[str, ...]
    kv_tokens: int | None = None
    tensor_parallel: int = 1
    hardware: str = ""


def read_curves(
    files: Sequence[IO[bytes]], *, context_tokens: int | None = None, hardware: str = ""
) -> Curves:
    """All of one publication's `files` (one or two). Raises CurveError, its place begun with the file's number where
    there are several, and NeedsWord."""
    found = []
    for number, file in enumerate(files, 1):
        try:
            found.append(_read(read_bytes(file, MAX_BYTES), context_tokens, hardware))
        except UnpackError as error:
            raise CurveError(_place("file", number, files), str(error)) from error
        except CurveError as error:
            raise CurveError(_place(error.place, number, files), error.message) from error
    first = found[0]
    for number, other in enumerate(found[1:], 2):
        if other.form != first.form:
            raise CurveError(
                f"file {number}", f"is of another form ({other.form}) than the first ({first.form})"
            )
    return replace(
        first,
        samples=_joined(sample for each in found for sample in each.samples),
        granted=tuple(dict.fromkeys(word for each in found for word in each.granted)),
        kv_tokens=next((each.kv_tokens for each in found if each.kv_tokens), None),
    )


def _place(place: str, number: int, files: Sequence[IO[bytes]]) -> str:
    return f"file {number}, {place}" if len(files) > 1 else place


def _joined(samples: Iterable[StepSample]) -> list[StepSample]:
    """The same shape in two files is one step with the repeats of both."""
    shapes: dict[object, StepSample] = {}
    for sample in samples:
        known = shapes.get(sample.shape)
        shapes[sample.shape] = replace(sample, seconds=known.seconds + sample.seconds) if known else sample
    return list(shapes.values())


def _read(data: bytes, context_tokens: int | None, hardware: str) -> Curves:
    if data.startswith(b"PK"):
        return _dynamo(data)
    header, rows = _table(data)
    if "batch_num_decode_tokens" in header:
        if context_tokens is None and any(
            row.get("batch_num_decode_tokens", "0") not in ("0", "0.0") for row in rows
        ):
            raise NeedsWord(
                "context_tokens", "The file has decodes without their context: say how many tokens it was."
            )
        context = context_tokens or 1
        samples = read_sarathi(io.BytesIO(data), context_tokens=context)
        told = GRANTED[SARATHI].format(context_tokens=context)
        return Curves(SARATHI, samples, (told,) if any(s.shape.decode_contexts for s in samples) else ())
    if {"prompt_time", "token_time"} <= header.keys():
        return _splitwise(data, rows, hardware)
    raise CurveError("line 1", "is neither of Sarathi's figure 2 (batch_num_decode_tokens, batch_num_prefill_tokens, "
                               "batch_execution_time) nor of Splitwise's table (prompt_time, token_time)")  # fmt: skip


def _dynamo(data: bytes) -> Curves:
    readers: dict[str, Callable[[IO[bytes]], list[StepSample]]] = {
        "prefill_isl": read_dynamo_prefill, "x_kv_usage": read_dynamo_decode,
    }  # fmt: skip
    try:
        names = npz_names(data)
        pool = npz_arrays(data, ["max_kv_tokens"], MAX_BYTES).get("max_kv_tokens", np.zeros(0))
    except ValueError as error:
        raise CurveError("file", str(error)) from error
    present = [name for name in readers if name in names]
    if not present:
        raise CurveError(
            "file", "has neither prefill_isl (a prefill profile) nor x_kv_usage (a decode profile)"
        )
    samples = [sample for name in present for sample in readers[name](io.BytesIO(data))]
    known = int(pool[0]) if len(pool) and 1 <= pool[0] <= MAX_POOL_TOKENS else None
    return Curves(DYNAMO, samples, tuple(GRANTED[name] for name in present), known)


def _splitwise(data: bytes, rows: list[dict[str, str]], hardware: str) -> Curves:
    offered = _distinct(rows, "hardware")
    chosen = hardware or (offered[0] if len(offered) == 1 else "")
    if chosen not in offered:
        raise NeedsWord("hardware", f"The file has {', '.join(offered[:12]) or 'no hardware'}: say which.")
    kept = [row for row in rows if row.get("hardware") == chosen]
    for column in ("model", "tensor_parallel"):
        if len(values := _distinct(kept, column)) > 1:
            raise CurveError(
                column, f"has several values for {chosen} ({', '.join(values[:6])}): keep the rows of one"
            )
    ranks = (_distinct(kept, "tensor_parallel") or ["1"])[0]
    if not ranks.isdigit() or not 1 <= int(ranks) <= 64:
        raise CurveError("tensor_parallel", f"must be a whole number from 1 to 64, is {ranks[:40]!r}")
    samples = read_splitwise(io.BytesIO(data), hardware=chosen)
    return Curves(SPLITWISE, samples, (GRANTED[SPLITWISE],), tensor_parallel=int(ranks), hardware=chosen)


def _distinct(rows: list[dict[str, str]], column: str) -> list[str]:
    """Values of a column in the order they appear; blank ones are left out."""
    return list(dict.fromkeys(value for row in rows if (value := (row.get(column) or "").strip())))


def _table(data: bytes) -> tuple[dict[str, None], list[dict[str, str]]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CurveError(f"line {line}", "is not UTF-8 text") from error
    if "\x00" in text:
        raise CurveError(
            f"line {text.count(chr(10), 0, text.index(chr(0))) + 1}", "holds a character that is no text"
        )
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        names = dict.fromkeys(reader.fieldnames or ())
        return names, [dict(row) for row in reader]
    except csv.Error as error:
        raise CurveError("file", f"is no CSV: {error}") from error
