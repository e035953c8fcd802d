"""vLLM's rules against published rejections, and our flags against the table of flags that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.serving_engines import vllm
from planner.simulation.knobs import VllmKnobs

ROOMY_BLOCKS = 1 << 20


def rows(reference_data: Path) -> list[dict[str, Any]]:
    path = reference_data / "faults" / "d12_engine_constraints.json"
    loaded: list[dict[str, Any]] = json.loads(path.read_text())
    return [row for row in loaded if "max_num_batched_tokens" in row]


def test_d12_invalid_rows_are_refused_and_the_warning_row_is_explained(reference_data: Path) -> None:
    found = rows(reference_data)
    assert len(found) == 4
    for row in found:
        budget, seqs = row["max_num_batched_tokens"], row.get("max_num_seqs", 256)
        rules = vllm.violations(
            VllmKnobs(max_num_batched_tokens=budget, max_num_seqs=seqs, num_blocks=ROOMY_BLOCKS),
            row.get("max_model_len", 8192),
            chunked_prefill=row.get("chunked_prefill", True),
        )
        assert row["valid"] == all(rule.severity == "warning" for rule in rules), row
        assert ("warn" in row) == any(rule.severity == "warning" for rule in rules), row


def test_every_flag_is_in_the_table_of_checked_flags(reference_data: Path) -> None:
    table = reference_data.parent / "spec" / "engine-flags.md"
    if not table.is_file():
        pytest.skip("the table of checked flags is not beside the reference data")
    text = table.read_text()
    columns = [line.split("|")[2] for line in text.splitlines() if line.startswith("|")]
    checked: set[str] = set()
    for name in re.findall(r"--[a-z\[\]-]+", " ".join(columns)):
        checked |= {name.replace("[no-]", ""), name.replace("[no-]", "no-")}
    assert set(vllm.FLAGS) <= checked, set(vllm.FLAGS) - checked
    dead = set(re.findall(r"--[a-z-]+", text.split("never emit: vLLM", 1)[1].split(";", 1)[0]))
    assert len(dead) == 5
    assert not dead & set(vllm.FLAGS)
