"""Step times as CSV: one row a step, with at most one chunk and decodes of one context.

    prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms        (or step_s)
    0,0,8,1024,18.6            8 decodes, 1,024 tokens cached in each
    512,2048,8,1024,61.9       the same beside a chunk of 512 tokens after 2,048 cached ones

The rules, all of them: UTF-8 (a byte order mark is skipped), plain or gzip (told by content). Lines end in LF or
CRLF; blank ones are skipped. Fields are separated by commas, never quoted; blanks around them are ignored. The
header is the first line; columns in any order, each once, names in any case; further columns are ignored. Counts
are whole decimal numbers ("16" or "16.0"); times are decimal, from 0.1 µs to an hour. A context without its
sequences or chunk is an error, as is a step without rows. Rows of the same shape are repeats of one sample.
The chunk is taken to complete its prompt (its step samples one token for it): the format cannot say.
Anything else is refused with its line and column; nothing is guessed, dropped or repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from calibration.sources.unpacking import TooLarge, UnpackError, read_bytes
from calibration.steptime.samples import StepSample
from calibration.steptime.shapes import Chunk, StepShape

COUNTS = ("prefill_tokens", "prefill_context", "decode_seqs", "decode_context")
TIMES = {
    "step_ms": 1000.0,
    "step_s": 1.0,
}  # column -> its units per second: dividing rounds right, 18 ms is 0.018
LIMITS = {"prefill_tokens": 2**20, "prefill_context": 2**24, "decode_seqs": 2**14, "decode_context": 2**24}
MAX_BYTES = 64 * 2**20
MAX_ROWS = 200_000
MAX_DECODES = 20_000_000  # decode rows of all steps together: they are kept one by one
SHORTEST_S, LONGEST_S = 1e-7, 3600.0
MAX_PROBLEMS = 1000  # kept with their place; the rest is only counted

_WHOLE = re.compile(r"[0-9]{1,12}(\.0*)?\Z")
_DECIMAL = re.compile(r"[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?\Z")
_Key = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class StepCsvProblem:
    """What is wrong where: `line` from 1, `column` by name or "" for the whole line or file."""

    line: int
    column: str
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}" + (f", column {self.column}" if self.column else "")
        return f"{place}: {self.message}"


class StepCsvError(ValueError):
    """The file is not a step table. `problems`: the first MAX_PROBLEMS; `count`: all of them; `too_large`: it is
    more bytes than are read."""

    def __init__(
        self, problems: list[StepCsvProblem], count: int | None = None, *, too_large: bool = False
    ) -> None:
        self.too_large = too_large
        self.problems = problems[:MAX_PROBLEMS]
        self.count = len(problems) if count is None else count
        super().__init__("; ".join(self.lines(3)))

    def lines(self, limit: int = 20) -> list[str]:
        """The first problems in words, and how many more there are."""
        shown = [str(problem) for problem in self.problems[:limit]]
        more = self.count - len(shown)
        return [*shown, f"... and {more} more"] if more else shown


class _Problems:
    """Collects problems up to the limit and counts all."""

    def __init__(self) -> None:
        self.kept: list[StepCsvProblem] = []
        self.count = 0

    def add(self, line: int, column: str, message: str) -> None:
        self.count += 1
        if len(self.kept) < MAX_PROBLEMS:
            self.kept.append(StepCsvProblem(line, column, message))


def read_step_csv(source: str | Path | IO[bytes], *, max_bytes: int = MAX_BYTES) -> list[StepSample]:
    """Samples with role "fit", in the order their shapes first appear; a file object is read from its start.

    `max_bytes` bounds the unpacked size. Raises StepCsvError with every problem's line and column.
    """
    try:
        data = read_bytes(source, max_bytes)
    except UnpackError as error:
        raise StepCsvError(
            [StepCsvProblem(1, "", str(error))], too_large=isinstance(error, TooLarge)
        ) from error
    text = _decode(data)
    lines = text.split("\n")
    place, time_column = _header(lines[0].removesuffix("\r"))
    problems = _Problems()
    repeats: dict[_Key, list[float]] = {}
    decodes = 0
    for number, key, seconds in _rows(lines, place, time_column, problems):
        if key not in repeats:
            decodes += key[2]
        repeats.setdefault(key, []).append(seconds)
        if decodes > MAX_DECODES:
            problems.add(number, "decode_seqs", f"more than {MAX_DECODES:,} decode rows in all")
            break
    if problems.count:
        raise StepCsvError(problems.kept, problems.count)
    if not repeats:
        raise StepCsvError([StepCsvProblem(1, "", "there is no row below the header")])
    return [StepSample(_shape(key), tuple(seconds)) for key, seconds in repeats.items()]


def _shape(key: _Key) -> StepShape:
    tokens, prefix, sequences, context = key
    return StepShape((context,) * sequences, (Chunk(tokens, prefix),) if tokens else ())


def _decode(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StepCsvError([StepCsvProblem(line, "", "is not UTF-8 text")]) from error
    if not text.strip():
        raise StepCsvError([StepCsvProblem(1, "", "the file is empty")])
    return text


def _header(line: str) -> tuple[dict[str, int], str]:
    """Index of each needed column, with the time's under "time"; and the time's name."""
    names = [name.strip().lower() for name in line.split(",")]
    if len(names) == 1 and (";" in line or "\t" in line):
        raise StepCsvError([StepCsvProblem(1, "", "fields must be separated by commas")])
    wanted = [*COUNTS, *TIMES]
    problems = [StepCsvProblem(1, n, "appears more than once") for n in wanted if names.count(n) > 1]
    problems += [StepCsvProblem(1, n, "is missing from the header") for n in COUNTS if n not in names]
    times = [name for name in TIMES if name in names]
    if len(times) != 1:
        problems.append(StepCsvProblem(1, "step_ms", "one of step_ms and step_s is needed, and only one"))
    if problems:
        raise StepCsvError(problems)
    place = {name: names.index(name) for name in COUNTS}
    return place | {"time": names.index(times[0]), "width": len(names)}, times[0]


def _rows(
    lines: list[str], place: dict[str, int], time_column: str, problems: _Problems
) -> Iterator[tuple[int, _Key, float]]:
    """(line number, counts, seconds) of each good row; the bad ones go to `problems`."""
    rows = 0
    for number, line in enumerate(lines[1:], 2):
        stripped = line.removesuffix("\r")
        if not stripped.strip(" \t"):
            continue
        rows += 1
        if rows > MAX_ROWS:
            problems.add(number, "", f"the file has more than {MAX_ROWS:,} rows")
            return
        fields = [field.strip(" \t") for field in stripped.split(",")]
        if len(fields) != place["width"]:
            problems.add(number, "", f"has {len(fields)} fields, the header has {place['width']}")
            continue
        before = problems.count
        tokens, prefix, sequences, context = (
            _count(fields[place[name]], number, name, problems) for name in COUNTS
        )
        seconds = _seconds(fields[place["time"]], number, time_column, problems)
        if problems.count > before:
            continue
        if not tokens and not sequences:
            problems.add(number, "", "is a step without rows: neither a chunk nor a decode")
        elif prefix and not tokens:
            problems.add(number, "prefill_context", "is a prefix without a chunk (prefill_tokens is 0)")
        elif context and not sequences:
            problems.add(number, "decode_context", "is a context without a decode (decode_seqs is 0)")
        else:
            yield number, (tokens, prefix, sequences, context), seconds


def _count(field: str, line: int, column: str, problems: _Problems) -> int:
    if not _WHOLE.match(field):
        problems.add(line, column, f"must be a whole number, is {_shown(field)}")
        return 0
    value = int(field.partition(".")[0])
    if value > LIMITS[column]:
        problems.add(line, column, f"is {value:,}, above the limit of {LIMITS[column]:,}")
    return value


def _seconds(field: str, line: int, column: str, problems: _Problems) -> float:
    if not _DECIMAL.match(field):
        problems.add(line, column, f"must be a number above 0, is {_shown(field)}")
        return 0.0
    seconds = float(field) / TIMES[column]
    if not SHORTEST_S <= seconds <= LONGEST_S:
        problems.add(line, column, f"must be 0.1 µs at least and an hour at most, is {_shown(field)}")
    return seconds


def _shown(field: str) -> str:
    return "empty" if not field else repr(field[:40])
