"""Curves that others published, as samples: Dynamo's profiles, Sarathi's figure 2, Splitwise's table.

    Dynamo      two npz files of its profiler: TTFT over prompt length at one request, and the gap between tokens over
                the share of the KV cache in use and the context length
    Sarathi     CSV of single batches: decode tokens or prefill tokens, and seconds (figure 2 of Agrawal et al. 2024)
    Splitwise   CSV of a model on a GPU: prompts of one size in a batch, then their decodes (Patel et al. 2024)

None is a table of steps. What had to be taken for granted is said by each reader: a published TTFT at one request is
one step and whatever the front end takes; a mean gap is the step at the middle of the output. Errors name the array
or the line. Units of the samples: tokens, seconds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibration.capacity import MAX_POOL_TOKENS
from calibration.sources.npz import npz_arrays
from calibration.sources.step_csv import LONGEST_S, SHORTEST_S
from calibration.sources.unpacking import UnpackError, read_bytes
from calibration.steptime.samples import StepSample
from calibration.steptime.shapes import Chunk, StepShape

Floats = NDArray[np.float64]
MAX_BYTES = 8 * 2**20
MAX_POINTS = 100_000
MAX_ROWS = 1 << 14  # sequences of one step
MAX_ALL_ROWS = 5_000_000  # of all steps together: they are kept one by one
MAX_TOKENS = 1 << 24
Source = str | Path | IO[bytes]


class CurveError(ValueError):
    """The file is not such a curve: `place` (an array, or "line N") and `message`."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


def read_dynamo_prefill(source: Source) -> list[StepSample]:
    """`prefill_isl` [tokens] and `prefill_ttft` [ms] of one request alone: one chunk that is the whole prompt.

    The front end's share of TTFT is in it."""
    arrays = _npz(source, ("prefill_isl", "prefill_ttft"))
    tokens, ms = arrays["prefill_isl"], arrays["prefill_ttft"]
    return _samples(
        (f"prefill_isl[{i}]", StepShape((), (Chunk(_count(t, f"prefill_isl[{i}]"), 0),)), (float(s) / 1e3,))
        for i, (t, s) in enumerate(zip(tokens, ms, strict=True))
    )


def read_dynamo_decode(source: Source) -> list[StepSample]:
    """`x_kv_usage` (share of `max_kv_tokens`), `y_context_length` [tokens] and `z_itl` [ms].

    As many sequences decode as hold that share at that context, all alike; the context is that of the middle of the
    output."""
    arrays = _npz(source, ("x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens"))
    pool = float(arrays["max_kv_tokens"][0])
    if not 1 <= pool <= MAX_POOL_TOKENS:
        raise CurveError("max_kv_tokens", f"must be from 1 to {MAX_POOL_TOKENS:,}")
    found, total = [], 0
    for i, (usage, context, ms) in enumerate(
        zip(arrays["x_kv_usage"], arrays["y_context_length"], arrays["z_itl"], strict=True)
    ):
        place = f"y_context_length[{i}]"
        length = _count(context, place)
        rows = max(1, round(float(usage) * pool / length)) if 0 < usage <= 1 else 0
        if not 0 < rows <= MAX_ROWS:
            raise CurveError(f"x_kv_usage[{i}]", f"must be a share above 0 of at most {MAX_ROWS:,} sequences")
        total = _bounded(total + rows, f"x_kv_usage[{i}]")
        found.append((place, StepShape((length,) * rows), (float(ms) / 1e3,)))
    return _samples(found)


def read_sarathi(source: Source, *, context_tokens: int) -> list[StepSample]:
    """Rows with `batch_num_decode_tokens`, `batch_num_prefill_tokens` and `batch_execution_time` [s].

    The decodes' context is not in the file: `context_tokens` is what the caller takes it to be."""

    def shape(row: Mapping[str, str], place: str) -> StepShape:
        decodes = _number(row, "batch_num_decode_tokens", place)
        prompt = _number(row, "batch_num_prefill_tokens", place)
        return StepShape(
            (context_tokens,) * _count(decodes, place, least=0, most=MAX_ROWS),
            (Chunk(_count(prompt, place), 0),) if prompt else (),
        )

    return _rows(source, shape, lambda row, place: _number(row, "batch_execution_time", place))


def read_splitwise(source: Source, *, hardware: str) -> list[StepSample]:
    """Both phases of every row of one `hardware`: `prompt_time` and `token_time` [ms], means over the output.

    Prefill: `batch_size` prompts of `prompt_size` tokens in one step. Decode: as many sequences at the context of the
    middle of the output, `prompt_size + token_size / 2`."""

    def kept(row: Mapping[str, str]) -> bool:
        return row.get("hardware") == hardware

    def count(row: Mapping[str, str], key: str, place: str) -> int:
        return _count(_number(row, key, place), place)

    def batch(row: Mapping[str, str], place: str) -> int:
        return _count(_number(row, "batch_size", place), place, most=MAX_ROWS)

    def prefill(row: Mapping[str, str], place: str) -> StepShape:
        return StepShape((), (Chunk(count(row, "prompt_size", place), 0),) * batch(row, place))

    def decode(row: Mapping[str, str], place: str) -> StepShape:
        context = count(row, "prompt_size", place) + count(row, "token_size", place) // 2
        return StepShape((context,) * batch(row, place))

    found = _rows(source, prefill, lambda row, place: _number(row, "prompt_time", place) / 1e3, kept)
    found += _rows(source, decode, lambda row, place: _number(row, "token_time", place) / 1e3, kept)
    if not found:
        raise CurveError("hardware", f"no row has {hardware!r}")
    return found


def _npz(source: Source, names: tuple[str, ...]) -> dict[str, Floats]:
    try:
        arrays = npz_arrays(read_bytes(source, MAX_BYTES), names, MAX_BYTES)
    except ValueError as error:  # UnpackError too
        raise CurveError("file", str(error)) from error
    for name in names:
        if name not in arrays:
            raise CurveError(name, "is missing")
    sizes = {len(arrays[name]) for name in names if name != "max_kv_tokens"}
    if len(sizes) != 1 or not 0 < min(sizes) <= MAX_POINTS:
        raise CurveError(names[0], f"must have 1 to {MAX_POINTS:,} numbers, as many as the others")
    if any(not len(array) or not np.all(np.isfinite(array)) for array in arrays.values()):
        raise CurveError("file", "has an array that is empty or holds what is no number")
    return arrays


def _rows(
    source: Source,
    shape_of: Callable[[Mapping[str, str], str], StepShape],
    seconds_of: Callable[[Mapping[str, str], str], float],
    kept: Callable[[Mapping[str, str]], bool] = lambda row: True,
) -> list[StepSample]:
    try:
        text = read_bytes(source, MAX_BYTES).decode("utf-8-sig")
    except (UnpackError, UnicodeDecodeError) as error:
        raise CurveError("file", str(error)[:200]) from error
    repeats: dict[StepShape, list[float]] = {}
    total = 0
    reader = csv.DictReader(io.StringIO(text, newline=""))
    for row in reader:
        place = f"line {reader.line_num}"
        if kept(row):
            seconds = seconds_of(row, place)
            _check(seconds, place)
            shape = _made(shape_of, row, place)
            if shape not in repeats:
                total = _bounded(total + len(shape.decode_contexts) + len(shape.chunks), place)
            repeats.setdefault(shape, []).append(seconds)
    return [StepSample(shape, tuple(seconds)) for shape, seconds in repeats.items()]


def _made(
    shape_of: Callable[[Mapping[str, str], str], StepShape], row: Mapping[str, str], place: str
) -> StepShape:
    try:
        return shape_of(row, place)
    except CurveError:
        raise
    except ValueError as error:
        raise CurveError(place, str(error)) from error


def _samples(found: Iterable[tuple[str, StepShape, tuple[float, ...]]]) -> list[StepSample]:
    samples = []
    for place, shape, seconds in found:
        _check(seconds[0], place)
        samples.append(StepSample(shape, seconds))
    return samples


def _check(seconds: float, place: str) -> None:
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise CurveError(place, f"takes {seconds:g} s: must be 0.1 µs at least and an hour at most")


def _number(row: Mapping[str, Any], name: str, place: str) -> float:
    try:
        value = float(row[name])
    except (KeyError, TypeError, ValueError):
        raise CurveError(place, f"{name} must be a number, is {str(row.get(name))[:40]!r}") from None
    if not np.isfinite(value):
        raise CurveError(place, f"{name} must be finite")
    return value


def _count(value: float, place: str, least: int = 1, most: int = MAX_TOKENS) -> int:
    if value != int(value) or not least <= value <= most:
        raise CurveError(place, f"must be a whole number from {least} to {most:,}, is {value:g}")
    return int(value)


def _bounded(rows: int, place: str) -> int:
    if rows > MAX_ALL_ROWS:
        raise CurveError(place, f"more than {MAX_ALL_ROWS:,} sequences in all steps together")
    return rows
