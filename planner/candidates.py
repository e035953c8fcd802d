"""The table of a plan's candidates: filtered, sorted and cut into pages by what the address says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.core.paginator import Page, Paginator
from django.http import QueryDict

from calibration.filters import ChipGroup, chip_group
from planner.knob_columns import (
    budget_of,
    cap_of,
    hardware_names,
    hardware_text,
    same_candidate,
    seqs_of,
    variant_words,
)
from planner.objective_columns import column_of, is_joint
from planner.simulation.cluster.deployment import ROUND_ROBIN

Result = Mapping[str, Any]
PAGE_ROWS = 25
STATUS_ORDER = ("meets", "fails", "not covered", "saturated", "invalid", "not tried")
# What a badge of templates/_badge.html looks like for each outcome: sign and colour.
STATUS_BADGES = {"meets": "done", "fails": "failed", "not covered": "hollow", "saturated": "interrupted",
                 "invalid": "refused", "not tried": "cancelled"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """A predicted latency in its column; ``exceeds`` its limit. ``joint``: a share of several limits instead."""

    seconds: float | None
    exceeds: bool
    joint: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    budget: int
    seqs: int
    cap: int
    told: str  # what else the engine is told
    hardware: str  # of a plan on two kinds of it
    replicas: int
    split: str  # "2 : 1" of two pools
    dealt: str  # how requests come to replicas, and caches from pool to pool
    status: str
    badge: str
    margin: float | None
    cells: tuple[Cell, ...]
    utilisation: float | None
    reason: str
    shown: bool


@dataclass(frozen=True, slots=True)
class Column:
    """A header that sorts: ``query`` is the address it leads to, ``direction`` how it is sorted now."""

    label: str
    query: str
    direction: str  # "", "ascending" or "descending"
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    page: Page[Row]
    chips: list[ChipGroup]
    query: str  # of the links to other pages
    total: int
    mixed: bool  # there is a column of hardware


def candidate_table(result: Result, shown: Result | None, query: QueryDict) -> Table:
    objectives = result["summary"]["objectives"]
    status, sort = query.get("status", ""), query.get("sort", "")
    names = hardware_names(result)
    rows = [_row(candidate, shown, len(objectives), names) for candidate in result["candidates"]]
    counts = Counter(row.status for row in rows)
    chosen = [row for row in rows if status not in STATUS_ORDER or row.status == status]
    keys = _keys(len(objectives))
    name = sort.removeprefix("-")
    if name in keys:
        known = [row for row in chosen if keys[name](row) is not None]
        unknown = [row for row in chosen if keys[name](row) is None]
        chosen = sorted(known, key=keys[name], reverse=sort.startswith("-")) + unknown
    else:
        chosen.sort(key=_best_first)
    labels = [("budget", "Budget [tokens]"), ("seqs", "Sequences"), ("cap", "Chunk cap [tokens]"),
              *([("hardware", "Hardware")] if (mixed := len(names) > 1) else []),
              ("replicas", "Replicas"), ("status", "Outcome"), ("margin", "Worst margin [%]"),
              *((f"o{i}", column_of(o)) for i, o in enumerate(objectives)),
              ("busy", "Busy [%]")]  # fmt: skip
    columns = tuple(_column(key, label, sort, query) for key, label in labels)
    shares = [(s, f"{s} {counts[s]:,}") for s in STATUS_ORDER if counts[s]]
    groups = [chip_group("Outcome", "status", shares, query)] if len(shares) > 1 else []
    kept = query.copy()
    kept.pop("page", None)
    page = Paginator(chosen, PAGE_ROWS).get_page(query.get("page"))
    return Table(columns, page, groups, kept.urlencode(), len(rows), mixed)


def _row(candidate: Result, shown: Result | None, objectives: int, names: Sequence[str]) -> Row:
    behaviour, split = candidate["behaviour"], candidate.get("split")
    cells = [
        Cell(o["predicted"], o["predicted"] is not None and o["predicted"] > o["limit"], is_joint(o))
        for o in candidate["objectives"]
    ] or [Cell(None, False)] * objectives
    reason = candidate["reason"] or "; ".join(candidate["warnings"])
    if candidate["status"] == "fails" and any(cell.exceeds for cell in cells):
        reason = ""  # the cells say it
    is_shown = shown is not None and same_candidate(candidate, shown)
    dealt = []
    if split:
        local = split["local_prefill_tokens"]
        dealt += [split["hand_off"], *([f"up to {local:,} tokens local"] if local else [])]
    if (router := candidate.get("router", ROUND_ROBIN)) != ROUND_ROBIN:
        dealt.append(router)
    return Row(
        budget_of(candidate), seqs_of(candidate), cap_of(candidate),
        ", ".join(variant_words(candidate)), hardware_text(candidate, names), candidate["replicas"],
        f"{split['prefill']:,} : {split['decode']:,}" if split else "", ", ".join(dealt), candidate["status"],
        STATUS_BADGES[candidate["status"]], candidate["worst_margin"],
        tuple(cells), behaviour["utilisation"] if behaviour else None, reason, is_shown,
    )  # fmt: skip


def _keys(objectives: int) -> dict[str, Callable[[Row], Any]]:
    keys: dict[str, Callable[[Row], Any]] = {
        "budget": lambda row: row.budget, "seqs": lambda row: row.seqs, "cap": lambda row: row.cap,
        "hardware": lambda row: row.hardware or None,
        "replicas": lambda row: row.replicas or None, "status": lambda row: STATUS_ORDER.index(row.status),
        "margin": lambda row: row.margin, "busy": lambda row: row.utilisation,
    }  # fmt: skip
    return keys | {f"o{index}": partial(_latency, index) for index in range(objectives)}


def _latency(index: int, row: Row) -> float | None:
    return row.cells[index].seconds


def _best_first(row: Row) -> tuple[Any, ...]:
    """The shown one, then what meets, on few replicas, with much to spare."""
    margin = -row.margin if row.margin is not None else float("inf")
    return not row.shown, STATUS_ORDER.index(row.status), row.replicas, margin


def _column(key: str, label: str, sort: str, query: QueryDict) -> Column:
    """A first click sorts best first (margins fall, all else rises); a second one turns it round."""
    first = f"-{key}" if key == "margin" else key
    second = key if key == "margin" else f"-{key}"
    changed = query.copy()
    changed.pop("page", None)
    changed["sort"] = second if sort == first else first
    direction = "" if sort not in (key, f"-{key}") else "descending" if sort.startswith("-") else "ascending"
    return Column(label, changed.urlencode(), direction, key not in ("status", "hardware"))
