"""Columns as read -> Traffic: rows left out, seconds, order, and the findings about it all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic import hygiene, runs
from planner.traffic.arrivals import arrival_times_s
from planner.traffic.clock import Clock, seconds_from_first
from planner.traffic.columns import Columns
from planner.traffic.errors import refuse
from planner.traffic.grids import spread_grid
from planner.traffic.hygiene import Rows
from planner.traffic.layout import UNTIMED, Layout
from planner.traffic.model import MAX_TOKENS, Finding, Floats, Integers, PrefixHashes, Traffic
from planner.traffic.options import ImportOptions
from planner.traffic.stream import Text

Mask = NDArray[np.bool_]
Order = NDArray[np.intp] | slice
"""Which rows, in which order; a slice where all stay as they are, which copies nothing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the rows were read: the columns, whether times are wall-clock stamps, the decimal mark found; what a
    special format has to tell and adds to the recipe, and the size of hashed blocks where it states it."""

    layout: Layout
    stamps: bool = False
    decimal: str | None = None
    findings: tuple[Finding, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    block_tokens: int | None = None


def assemble(
    columns: Columns, reading: Reading, options: ImportOptions, text: Text, *, source: str
) -> Traffic:
    """The traffic of all rows, every one of which is sound by itself. TrafficError where none can be a
    request or the times make no sense together."""
    layout = reading.layout
    line = columns.lines.taken()
    prompts, outputs = columns.prompts.taken(), columns.outputs.taken()
    findings: list[Finding | None] = [*_reading(columns, layout, options, text), *reading.findings]
    if layout.length_unit != "tokens":
        prompts, outputs = (
            _as_tokens(lengths, options.tokens_per_unit or 1.0) for lengths in (prompts, outputs)
        )
        findings.append(hygiene.converted(layout.length_unit, options.tokens_per_unit or 1.0, len(line)))
    failed = columns.failed.taken() if columns.failed else None
    keep = _kept(line, prompts, outputs, failed, options, findings)
    clock = None
    if layout.time is None:
        rng = np.random.default_rng(options.seed)
        order: Order = slice(None) if keep.all() else np.flatnonzero(keep)
        arrival_s = arrival_times_s(
            options.rate_per_s or 0.0,
            requests=int(keep.sum()),
            interarrival_cv=options.interarrival_cv,
            rng=rng,
        )
    else:
        times = columns.times.taken()
        clock = seconds_from_first(times, layout, stamps=reading.stamps, chosen=options.time_unit)
        findings.append(clock.finding)
        arrival_s, joints = runs.placed(clock.arrival_s, line, options.time_origin)
        findings += joints
        order, arrival_s = _in_order(arrival_s, keep, line, findings)
    rows = Rows(line[order], arrival_s, prompts[order].astype(np.int64), outputs[order].astype(np.int64))
    del prompts, outputs
    hashes = _hashes(columns, order, rows, reading.block_tokens, findings)
    traffic = Traffic(
        arrival_s=rows.arrival_s,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        source=source,
        format=layout.format,
        max_tokens=_caps(columns, order, rows, findings),
        priority=columns.priorities.taken()[order] if columns.priorities else None,
        request_class=columns.classes.taken()[order] if columns.classes else None,
        class_names=tuple(columns.class_codes),
        prefix_hashes=hashes,
        rows_read=columns.rows,
        recipe=_recipe(reading, options, text, clock),
    )
    findings += [hygiene.single_outputs(rows)]
    if layout.time is not None:
        findings += [hygiene.duplicates(rows), hygiene.grid(rows), hygiene.whole_second_stamps(rows)]
        findings += [hygiene.one_gap(rows), hygiene.rate_check(traffic.rate_per_s, traffic.requests)]
        findings.append(
            hygiene.survivors(columns.rows, failed, options.attempted_requests, traffic.rate_per_s)
        )
    if traffic.request_class is not None:
        name = layout.request_class or "model"
        findings.append(hygiene.classes(traffic.class_names, traffic.request_class, name))
    traffic = traffic.with_warnings(*(finding for finding in findings if finding))
    return spread_grid(traffic) if options.spread_grid else traffic


def _as_tokens(lengths: NDArray[np.int32], tokens_per_unit: float) -> NDArray[np.int32]:
    """Words or characters as tokens, at least one where there was one. TrafficError beyond what a request is."""
    tokens = np.where(lengths > 0, np.maximum(np.rint(lengths * tokens_per_unit), 1), 0)
    if tokens.max(initial=0) > MAX_TOKENS:
        message = f"With so many tokens each, a length is more than {MAX_TOKENS:,} tokens."
        raise refuse(message, code="option", field="tokens_per_unit")
    return tokens.astype(np.int32)


def _reading(columns: Columns, layout: Layout, options: ImportOptions, text: Text) -> list[Finding]:
    """What the bytes were like."""
    found = []
    if text.encoding == "windows-1252":
        message = "The text is not UTF-8 and was read as Windows-1252; only names can be affected."
        found.append(Finding("encoding", message))
    if text.encoding == "utf-16":
        found.append(Finding("encoding", "The file is in UTF-16 and was read so."))
    if text.array:
        message = "The file is one JSON array; what is said of lines is about its elements, counted from 1."
        found.append(Finding("json_array", message, columns.rows))
    blank = columns.blank_between_rows
    if blank:
        lines = tuple(columns.blank.first[:blank])
        found.append(Finding("blank_lines", "Blank lines between rows were skipped.", blank, lines))
    multi_line = columns.multi_line
    if multi_line.count:
        message = "Rows with a line end inside quotes were read as one row each."
        found.append(Finding("multi_line_fields", message, multi_line.count, tuple(multi_line.first)))
    if layout.mapped:
        chosen = ", ".join(f"{role} = {options.columns[role] or 'none'}" for role in options.columns)
        found.append(Finding("mapped", f"Columns were chosen by hand: {chosen}."))
    if layout.format == "lengths" and layout.unread:
        message = f"No column was taken for time; not used: {', '.join(layout.unread[:12])}."
        found.append(Finding("no_time_column", message))
    if layout.format not in UNTIMED and options.rate_per_s is not None:
        message = f"The rate given was not used: the column {layout.time} has the times."
        found.append(Finding("rate_not_used", message))
    return found


def _kept(
    line: NDArray[np.int32],
    prompts: NDArray[np.int32],
    outputs: NDArray[np.int32],
    failed: Mask | None,
    options: ImportOptions,
    findings: list[Finding | None],
) -> Mask:
    """Which rows can be requests; the others go to `findings`. May raise outputs of 0 to 1, if asked to."""

    def leave_out(code: str, what: str, rows: Mask) -> None:
        if rows.any():
            count = int(rows.sum())
            place = f"{'row' if count == 1 else 'rows'} {hygiene.spans(np.flatnonzero(rows) + 1)}"
            findings.append(hygiene.at_lines(code, f"{count:,} left out ({place}): {what}.", line[rows]))

    said = np.zeros(len(line), np.bool_) if failed is None else failed & (outputs > 0)
    leave_out("failed", "the row itself says that the request failed", said)
    no_output, no_prompt = (outputs == 0) & ~said, prompts == 0
    if options.zero_outputs == "keep_arrival" and no_output.any():
        message = (
            f"{int(no_output.sum()):,} rows without output, failed requests, kept with one output token."
        )
        findings.append(hygiene.at_lines("zero_output_kept", message, line[no_output]))
        outputs[no_output] = 1
        no_output = np.zeros_like(no_output)
    leave_out("zero_output", "no output tokens, which is how failed requests are recorded", no_output)
    leave_out("zero_prompt", "no prompt tokens", no_prompt & ~no_output & ~said)
    keep: Mask = ~(no_output | no_prompt | said)
    if options.max_model_len is not None:
        too_long = keep & (prompts.astype(np.int64) + outputs > options.max_model_len)
        what = f"prompt and output are more than {options.max_model_len:,} tokens (max_model_len); never cut"
        leave_out("longer_than_model", what, too_long)
        keep &= ~too_long
    if not keep.any():
        reasons = " ".join(finding.message for finding in findings if finding)
        raise refuse(f"No row can be a request. {reasons}", code="no_requests")
    return keep


def _in_order(
    arrival_s: Floats, keep: Mask, line: NDArray[np.int32], findings: list[Finding | None]
) -> tuple[Order, Floats]:
    """Indices of the kept rows by time (equal times in the file's order), and their times from 0."""
    findings.append(hygiene.unsorted(arrival_s, line))
    order: Order = slice(None) if keep.all() else np.flatnonzero(keep)
    arrival_s = arrival_s[order]
    if (arrival_s[1:] < arrival_s[:-1]).any():
        by_time = np.argsort(arrival_s, kind="stable")
        order = by_time if isinstance(order, slice) else order[by_time]
        arrival_s = arrival_s[by_time]
    return order, arrival_s - arrival_s[0] if arrival_s[0] else arrival_s


def _caps(columns: Columns, order: Order, rows: Rows, findings: list[Finding | None]) -> Integers | None:
    """max_tokens of the kept rows, never below the output; None where the file has none."""
    if not columns.max_tokens:
        return None
    caps = columns.max_tokens.taken()[order].astype(np.int64)
    none, below = caps == 0, (caps > 0) & (caps < rows.output_tokens)
    if none.any():
        message = f"{int(none.sum()):,} rows give no max_tokens: their output length stands for it."
        findings.append(hygiene.at_lines("max_tokens_missing", message, rows.line[none]))
    if below.any():
        message = (
            f"{int(below.sum()):,} rows have more output than max_tokens: their output length stands for it."
        )
        findings.append(hygiene.at_lines("max_tokens_below_output", message, rows.line[below]))
    return np.where(none | below, rows.output_tokens, caps)


def _hashes(
    columns: Columns,
    order: Order,
    rows: Rows,
    block_tokens: int | None,
    findings: list[Finding | None],
) -> PrefixHashes | None:
    if not columns.hashes_read:
        return None
    offsets: Integers = np.concatenate(([0], np.cumsum(columns.hash_counts.taken(), dtype=np.int64)))
    hashes = PrefixHashes(columns.hashes.taken(), offsets)
    if not isinstance(order, slice):
        hashes = hashes.take(order)
    checked, finding = hygiene.hash_block(hashes, rows.prompt_tokens, rows.line, block_tokens)
    findings.append(finding)
    return checked


def _recipe(reading: Reading, options: ImportOptions, text: Text, clock: Clock | None) -> dict[str, Any]:
    """How the file was read: with the file, enough to read it so again."""
    layout = reading.layout
    recipe: dict[str, Any] = {
        "options": options.changed(),
        "layout": asdict(layout),
        "encoding": text.encoding,
        "compression": text.compression,
        **reading.recipe,
    }
    if reading.decimal is not None:
        recipe["decimal"] = reading.decimal
    if clock is not None:
        recipe |= {"time_unit": clock.unit, "first_time": clock.first}
    if layout.time is None:
        recipe |= {"rate_per_s": options.rate_per_s, "seed": options.seed}
    return recipe
