"""What a user should know about a file that could be read: one finding per kind, with counts and lines.

A finding never stands for a change that nobody asked for: rows that cannot be requests are left out and
listed, rows out of order are sorted (equal times keep their order), everything else is kept and reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.traffic.errors import LISTED, refuse
from planner.traffic.growing import parts
from planner.traffic.model import Finding, Floats, Integers, PrefixHashes

Lines = NDArray[np.int32]
BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1_024, 2_048, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file beside each other, all of length N: lines, lengths, arrival in seconds."""

    line: Lines
    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers


def at_lines(code: str, message: str, lines: Lines) -> Finding:
    """A finding about so many lines, the first of them listed."""
    return Finding(code, message, len(lines), tuple(lines[:LISTED].tolist()))


def spans(numbers: Integers, limit: int = 12) -> str:
    """Row numbers for a sentence: "2-5, 9", cut after `limit` spans."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    parts = np.split(numbers, breaks[:limit])[:limit]
    text = ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)
    return f"{text} ..." if len(breaks) >= limit else text


def unsorted(arrival_s: Floats, line: Lines) -> Finding | None:
    """Rows that are earlier than one before them."""
    if not (arrival_s[1:] < arrival_s[:-1]).any():
        return None
    latest = np.maximum.accumulate(arrival_s)
    back = latest - arrival_s
    late = np.flatnonzero(back > 0)
    if not len(late):
        return None
    message = (
        f"{_rows(len(late), 'is', 'are')} earlier than one before, by up to {back.max():.6g} s; sorted by time "
        "(equal times in the file's order). If the file joins several runs, they now overlap."
    )
    return at_lines("unsorted", message, line[late])


def single_outputs(rows: Rows) -> Finding | None:
    lines = rows.line[rows.output_tokens == 1]
    if not len(lines):
        return None
    others = len(rows.line) - len(lines)
    message = (
        f"{_rows(len(lines), 'has', 'have')} one output token, which leaves no gap to measure; "
        f"TPOT and ITL are of the other {others:,}."
    )
    return at_lines("single_token_output", message, lines)


def duplicates(rows: Rows) -> Finding | None:
    """Rows equal in time, prompt and output to one before them. `rows` are sorted by time."""
    same_time = np.flatnonzero(rows.arrival_s[1:] == rows.arrival_s[:-1])
    if not len(same_time):
        return None
    among = np.unique(np.concatenate((same_time, same_time + 1)))
    keys = (rows.output_tokens[among], rows.prompt_tokens[among], rows.arrival_s[among])
    order = among[np.lexsort(keys)]
    columns = (rows.arrival_s, rows.prompt_tokens, rows.output_tokens)
    equal = np.logical_and.reduce([np.diff(column[order]) == 0 for column in columns])
    repeated = np.sort(order[1:][equal])
    if not len(repeated):
        return None
    message = f"{_rows(len(repeated), 'is', 'are')} the same in time and lengths as one before; kept."
    return at_lines("duplicate", message, rows.line[repeated])


def grid(rows: Rows) -> Finding | None:
    """Many requests on few stamps: the recording's clock was coarse, and bursts at its ticks are not real."""
    n = len(rows.arrival_s)
    new = rows.arrival_s[1:] != rows.arrival_s[:-1]
    if n < 8 or (1 + int(new.sum())) * 2 > n:
        return None
    stamps = np.unique(rows.arrival_s)
    tick_s = float(np.median(np.diff(stamps))) if len(stamps) > 1 else 0.0
    tick = f", every {tick_s:.6g} s" if tick_s else ""
    message = (
        f"{n:,} requests share {len(stamps):,} time stamps{tick}. Requests on one stamp arrive at once here, "
        "which lengthens their TTFT; spread_grid spreads them evenly over the tick, and either way the "
        "result depends on that choice."
    )
    return Finding("time_grid", message, n)


def whole_second_stamps(rows: Rows) -> Finding | None:
    """Stamps in whole seconds although requests come about as often: gaps are rounded."""
    n = len(rows.arrival_s)
    if n < 50 or rows.arrival_s[-1] > 5.0 * n or any((rows.arrival_s[part] % 1).any() for part in parts(n)):
        return None
    message = "All times are whole seconds, and requests come about as often: gaps and bursts are rounded."
    return Finding("whole_seconds", message, n)


def one_gap(rows: Rows) -> Finding | None:
    """One pause that is nearly the whole trace: times of two origins, or two recordings in one file."""
    n = len(rows.arrival_s)
    if n < 8 or rows.arrival_s[-1] < 3_600:
        return None
    gaps_s = np.diff(rows.arrival_s)
    at = int(gaps_s.argmax())
    share = float(gaps_s[at]) / float(rows.arrival_s[-1])
    if share < 0.9:
        return None
    message = (
        f"One pause of {gaps_s[at]:,.6g} s, {100 * share:.4g} % of the whole, lies between lines {rows.line[at]} and "
        f"{rows.line[at + 1]}: are all times of one origin?"
    )
    return Finding("one_gap", message, 2, (int(rows.line[at]), int(rows.line[at + 1])))


def survivors(
    rows: int, failed: NDArray[np.bool_] | None, attempted: int | None, rate_per_s: float | None
) -> Finding | None:
    """Only requests that ended well, or as many attempts as the user says there were."""
    if attempted is not None:
        if attempted < rows:
            raise refuse(
                f"The file has {rows:,} rows, more than the {attempted:,} requests that were attempted.",
                code="option", field="attempted_requests",
            )  # fmt: skip
        if attempted == rows:
            return None
        offered = f": the offered rate was about {rate_per_s * attempted / rows:.4g}/s" if rate_per_s else ""
        message = (
            f"{attempted:,} requests were attempted and {rows:,} are in the file, {100 * rows / attempted:.3g} % of "
            f"them{offered}, not the rate shown. Those missing are not made up."
        )
        return Finding("survivors_only", message, attempted - rows)
    if failed is not None and not failed.any():
        message = (
            "The file says of every request that it succeeded. If failed ones were not recorded, the true load was "
            "higher: say how many were attempted (attempted_requests)."
        )
        return Finding("survivors_only", message, rows)
    return None


def converted(unit: str, tokens_per_unit: float, count: int) -> Finding:
    message = (
        f"Lengths are {unit}; {tokens_per_unit:g} tokens for each were assumed. Real tokenizers differ by text and "
        "language."
    )
    return Finding("length_unit", message, count)


def rate_check(rate_per_s: float | None, count: int) -> Finding | None:
    if rate_per_s is None or rate_per_s <= 1_000:
        return None
    message = f"{count:,} requests at {rate_per_s:,.0f} per second on average: is the unit of time right?"
    return Finding("high_rate", message, count)


def hash_block(
    hashes: PrefixHashes, prompt_tokens: Integers, line: Lines, stated: int | None = None
) -> tuple[PrefixHashes | None, Finding | None]:
    """The block size for which ceil(prompt / block) is the number of hashes, and what does not fit it.

    Hashes that fit no size for at least half of the rows are left out: they cannot be block hashes."""
    lengths = np.diff(hashes.offsets)
    sizes = (stated,) if stated else BLOCK_SIZES
    wrong = {size: int((-(-prompt_tokens // size) != lengths).sum()) for size in sizes}
    size = min(sizes, key=lambda candidate: wrong[candidate])
    if wrong[size] == 0:
        return PrefixHashes(hashes.flat, hashes.offsets, size), None
    misfits = line[-(-prompt_tokens // size) != lengths]
    rule = f"ceil(prompt / {size}), the block size that {'is stated' if stated else 'fits most'}"
    if len(misfits) * 2 > len(line):
        message = (
            f"{_rows(len(misfits), 'has', 'have')} another number of hash_ids than {rule}: hash_ids left out."
        )
        return None, at_lines("hash_ids_left_out", message, misfits)
    message = f"{_rows(len(misfits), 'has', 'have')} another number of hash_ids than {rule}; kept."
    return PrefixHashes(hashes.flat, hashes.offsets, size), at_lines("hash_ids_length", message, misfits)


def classes(names: tuple[str, ...], codes: NDArray[np.int16], column: str) -> Finding | None:
    if len(names) < 2:
        return None
    counts = np.bincount(codes, minlength=len(names)).tolist()
    shown = ", ".join(f"{name} ({count:,})" for name, count in list(zip(names, counts, strict=True))[:10])
    mixed = f"{len(names):,} values of {column} are mixed here: {shown}."
    if "model" in column.casefold():
        return Finding("several_models", f"{mixed} One deployment serves one model.")
    return Finding("several_classes", f"{mixed} Objectives can be set for each.")


def _rows(count: int, verb: str, verb_of_many: str) -> str:
    return f"{count:,} row {verb}" if count == 1 else f"{count:,} rows {verb_of_many}"
