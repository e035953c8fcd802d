"""The reference results: which commands are run on which data, and what of their answers is kept.

Nothing here is typed by hand: ``manage.py reference_results`` runs the commands, and the accuracy page shows what they
answered, with the command, the day, the commit and the checksums of the data. Other people's data is not kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: `value` and, where it is held to one, `bar`. Shares of 1 where `unit` is "share"."""

    name: str
    value: float | None
    unit: str
    bar: float | None = None
    holds: bool | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """`arguments` of manage.py, file names relative to the data folder; `read`: figures of its JSON answer."""

    name: str
    title: str
    group: str
    arguments: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], list[Figure]]


@dataclass(frozen=True, slots=True)
class Reference:
    """One check that was run. `exit_code` 0: it holds, 1: below its bars. cpu_s: of the command."""

    name: str
    title: str
    group: str
    command: str
    date: str
    commit: str
    exit_code: int
    cpu_s: float
    data: list[dict[str, Any]]
    figures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return self.exit_code == 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _cases(answer: Mapping[str, Any]) -> list[Figure]:
    found = []
    for by, report in answer.items():
        found.append(Figure(f"{by}: cases identical to the recording", report["identical"], "cases", report["cases"],
                            report["identical"] == report["cases"]))  # fmt: skip
    return found


def _fit(answer: Mapping[str, Any]) -> list[Figure]:
    named = {
        "median": "held-out error, median", "p90": "held-out error, p90", "p95": "held-out error, p95",
        "decode_p90": "pure decode, p90", "large_decode_bias": "bias of decode at large contexts",
    }  # fmt: skip
    bars = answer["bars"]
    return [
        Figure(text, answer["mean"][key], "share", bars[key],
               None if answer["mean"][key] is None else abs(answer["mean"][key]) <= bars[key])
        for key, text in named.items()
    ]  # fmt: skip


def _replay(answer: Mapping[str, Any]) -> list[Figure]:
    """Of the variants that decide: each metric's largest error over its statistics and choices of samples."""
    found = []
    for variant in answer["variants"]:
        if not variant["decides"]:
            continue
        for comparison in variant["comparisons"]:
            metric = comparison["metric"]
            worst = max((float(error) for error in comparison["errors"]), key=abs)
            bar = answer["within"][metric]
            text = f"{variant['scheduling']}, {metric.upper()}: largest error of {', '.join(answer['statistics'])}"
            found.append(Figure(text, worst, "share", bar, abs(worst) <= bar))
    return found


def _scheduler(engine: str, title: str) -> Check:
    path = f"schedulers/{engine}.jsonl.gz"
    return Check(
        f"scheduler-{engine}", title, "Schedulers", ("scheduler_cases", path, "--by", "both"), (path,), _cases
    )


_RUN = "replay/rtx4090-llama-3.1-8b"
_RUN_FILES = tuple(
    f"{_RUN}/{name}" for name in ("meta.json", "requests.jsonl", "steps.csv.gz", "prefix_blocks.jsonl")
)
CHECKS = (
    _scheduler("vllm-0.33.0", "vLLM 0.33.0's own scheduler, batch by batch"),
    _scheduler("sglang-0.5.23", "SGLang 0.5.23's own scheduler, batch by batch"),
    _scheduler("sarathi-96f99117", "Sarathi-Serve's scheduler, batch by batch"),
    _scheduler("orca-96f99117", "Orca's scheduler, batch by batch"),
    _scheduler("prefill-first-96f99117", "The prefill-first scheduler of vLLM V0, batch by batch"),
    Check("fit-40", "Step times of an RTX 4090 from 40 samples", "Step times",
          ("fit_check", f"{_RUN}/steps.csv.gz", "--points", "40", "--seeds", "5"), (f"{_RUN}/steps.csv.gz",), _fit),
    Check("replay-80", "A real vLLM run of 300 requests from 80 step times", "Replays",
          ("replay_check", _RUN, "--samples", "80"), _RUN_FILES, _replay),
    Check("replay-all", "The same run from all step times", "Replays",
          ("replay_check", _RUN, "--samples", "all"), _RUN_FILES, _replay),
)  # fmt: skip


def checksums(folder: Path, files: tuple[str, ...]) -> list[dict[str, Any]]:
    """Name, bytes and SHA-256 of each file. Raises OSError."""
    found = []
    for name in files:
        data = (folder / name).read_bytes()
        found.append({"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return found


def read_results(path: Path) -> list[Reference]:
    """What was written, in the order of CHECKS; nothing of a file that is not there or of another schema."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        return []
    return [Reference(**row) for row in stored["results"]]


def write_results(path: Path, results: list[Reference]) -> None:
    order = {check.name: index for index, check in enumerate(CHECKS)}
    rows = sorted(results, key=lambda row: order.get(row.name, len(order)))
    text = json.dumps(
        {"schema": SCHEMA, "results": [row.to_dict() for row in rows]}, indent=1, allow_nan=False
    )
    path.write_text(text + "\n")
