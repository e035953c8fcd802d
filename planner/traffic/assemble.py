"""Columns as read -> Traffic: rows left out, seconds, order, and the findings about it all."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic import hygiene
from planner.traffic.arrivals import arrival_times_s
from planner.traffic.clock import Clock, seconds_from_first
from planner.traffic.columns import Columns, joined
from planner.traffic.errors import refuse
from planner.traffic.grids import spread_grid
from planner.traffic.hygiene import Rows
from planner.traffic.layout import Layout
from planner.traffic.model import Finding, Floats, Integers, PrefixHashes, Traffic
from planner.traffic.options import ImportOptions
from planner.traffic.stream import Text

Mask = NDArray[np.bool_]


def assemble(
    columns: Columns,
    layout: Layout,
    options: ImportOptions,
    text: Text,
    *,
    source: str,
    stamps: bool,
    decimal: str | None,
) -> Traffic:
    """The traffic of all rows, every one of which is sound by itself. TrafficError where none can be a
    request or the times make no sense together."""
    line = joined(columns.lines)
    prompts, outputs = joined(columns.prompts), joined(columns.outputs)
    findings: list[Finding | None] = [*_reading(columns, layout, options, text)]
    keep = _kept(line, prompts, outputs, options, findings)
    clock = None
    if layout.time is None:
        rng = np.random.default_rng(options.seed)
        order = np.flatnonzero(keep)
        arrival_s = arrival_times_s(
            options.rate_per_s or 0.0, requests=len(order), interarrival_cv=options.interarrival_cv, rng=rng
        )
    else:
        times = joined(columns.times)
        clock = seconds_from_first(times, layout, stamps=stamps, chosen=options.time_unit)
        del times
        findings.append(clock.finding)
        order, arrival_s = _in_order(clock.arrival_s, keep, line, findings)
    rows = Rows(line[order], arrival_s, prompts[order].astype(np.int64), outputs[order].astype(np.int64))
    del prompts, outputs
    hashes = _hashes(columns, order, rows, findings)
    traffic = Traffic(
        arrival_s=rows.arrival_s,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        source=source,
        format=layout.format,
        request_class=joined(columns.classes)[order] if columns.classes else None,
        class_names=tuple(columns.class_codes),
        prefix_hashes=hashes,
        rows_read=columns.rows,
        recipe=_recipe(layout, options, text, clock, decimal),
    )
    findings += [hygiene.single_outputs(rows), hygiene.duplicates(rows)]
    if layout.time is not None:
        findings += [hygiene.grid(rows), hygiene.whole_second_stamps(rows)]
        findings.append(hygiene.rate_check(traffic.rate_per_s, traffic.requests))
    if traffic.request_class is not None:
        name = layout.request_class or ""
        findings.append(hygiene.classes(traffic.class_names, traffic.request_class, name))
    traffic = traffic.with_warnings(*(finding for finding in findings if finding))
    return spread_grid(traffic) if options.spread_grid else traffic


def _reading(columns: Columns, layout: Layout, options: ImportOptions, text: Text) -> list[Finding]:
    """What the bytes were like."""
    found = []
    if text.encoding == "windows-1252":
        message = "The text is not UTF-8 and was read as Windows-1252; only names can be affected."
        found.append(Finding("encoding", message, 1))
    if text.encoding == "utf-16":
        found.append(Finding("encoding", "The file is in UTF-16 and was read so.", 1))
    blank = columns.blank_between_rows
    if blank:
        lines = tuple(columns.blank.first[:blank])
        found.append(Finding("blank_lines", "Blank lines between rows were skipped.", blank, lines))
    multi_line = columns.multi_line
    if multi_line.count:
        message = "Rows with a line end inside quotes were read as one row each."
        found.append(Finding("multi_line_fields", message, multi_line.count, tuple(multi_line.first)))
    if layout.time is None and layout.unread:
        message = f"No column was taken for time; not used: {', '.join(layout.unread[:12])}."
        found.append(Finding("no_time_column", message, len(layout.unread)))
    if layout.time is not None and options.rate_per_s is not None:
        message = f"The rate given was not used: the column {layout.time} has the times."
        found.append(Finding("rate_not_used", message, 1))
    return found


def _kept(
    line: NDArray[np.int32],
    prompts: NDArray[np.int32],
    outputs: NDArray[np.int32],
    options: ImportOptions,
    findings: list[Finding | None],
) -> Mask:
    """Which rows can be requests; the others go to `findings`. May raise outputs of 0 to 1, if asked to."""
    number = np.arange(1, len(line) + 1)

    def leave_out(code: str, what: str, rows: Mask) -> None:
        if rows.any():
            count = int(rows.sum())
            place = f"{'row' if count == 1 else 'rows'} {hygiene.spans(number[rows])}"
            findings.append(hygiene.at_lines(code, f"{count:,} left out ({place}): {what}.", line[rows]))

    no_output, no_prompt = outputs == 0, prompts == 0
    if options.zero_outputs == "keep_arrival" and no_output.any():
        message = (
            f"{int(no_output.sum()):,} rows without output, failed requests, kept with one output token."
        )
        findings.append(hygiene.at_lines("zero_output_kept", message, line[no_output]))
        outputs[no_output] = 1
        no_output = np.zeros_like(no_output)
    leave_out("zero_output", "no output tokens, which is how failed requests are recorded", no_output)
    leave_out("zero_prompt", "no prompt tokens", no_prompt & ~no_output)
    keep: Mask = ~(no_output | no_prompt)
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
) -> tuple[NDArray[np.intp], Floats]:
    """Indices of the kept rows by time (equal times in the file's order), and their times from 0."""
    findings.append(hygiene.unsorted(arrival_s, line))
    order = np.flatnonzero(keep)
    arrival_s = arrival_s[order]
    if (np.diff(arrival_s) < 0).any():
        by_time = np.argsort(arrival_s, kind="stable")
        order, arrival_s = order[by_time], arrival_s[by_time]
    return order, arrival_s - arrival_s[0]


def _hashes(
    columns: Columns, order: NDArray[np.intp], rows: Rows, findings: list[Finding | None]
) -> PrefixHashes | None:
    if not columns.hashes_read:
        return None
    offsets: Integers = np.concatenate(([0], np.cumsum(joined(columns.hash_counts), dtype=np.int64)))
    hashes = PrefixHashes(joined(columns.hashes), offsets).take(order)
    checked, finding = hygiene.hash_block(hashes, rows.prompt_tokens, rows.line)
    findings.append(finding)
    return checked


def _recipe(
    layout: Layout, options: ImportOptions, text: Text, clock: Clock | None, decimal: str | None
) -> dict[str, Any]:
    """How the file was read: with the file, enough to read it so again."""
    recipe: dict[str, Any] = {
        "options": options.changed(),
        "layout": asdict(layout),
        "encoding": text.encoding,
        "compression": text.compression,
    }
    if decimal is not None:
        recipe["decimal"] = decimal
    if clock is not None:
        recipe |= {"time_unit": clock.unit, "first_time": clock.first}
    if layout.time is None:
        recipe |= {"rate_per_s": options.rate_per_s, "seed": options.seed}
    return recipe
