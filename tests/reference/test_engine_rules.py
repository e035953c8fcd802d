"""The engines' rules against published rejections, and our flags against the table of flags that exist."""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.serving_engines import sglang, tensorrt_llm, vllm
from planner.simulation.knobs import SglangKnobs, TrtLlmKnobs, VllmKnobs

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


def test_d12_rows_of_other_engines_are_refused_by_their_rules(reference_data: Path) -> None:
    path = reference_data / "faults" / "d12_engine_constraints.json"
    for_trtllm, for_sglang = [row for row in json.loads(path.read_text()) if "chunk" in row]
    assert (for_trtllm["valid"], for_sglang["valid"]) == (False, False)
    (of_blocks,) = tensorrt_llm.violations(
        TrtLlmKnobs(
            for_trtllm["chunk"],
            256,
            ROOMY_BLOCKS,
            tokens_per_block=for_trtllm["block"],
            enable_chunked_prefill=True,
        ),
        8192,
    )
    assert (of_blocks.severity, of_blocks.field) == ("error", "max_num_tokens")
    (of_budget,) = sglang.violations(
        SglangKnobs(
            for_sglang["chunk"], 256, ROOMY_BLOCKS, max_prefill_tokens=for_sglang["max_prefill_tokens"]
        ),
        8192,
    )
    assert (of_budget.severity, of_budget.field) == ("error", "chunked_prefill_size")


def columns(reference_data: Path) -> list[list[str]]:
    """The table of checked flags, by engine: vLLM, SGLang, TensorRT-LLM."""
    table = reference_data.parent / "spec" / "engine-flags.md"
    if not table.is_file():
        pytest.skip("the table of checked flags is not beside the reference data")
    rows = [line.split("|") for line in table.read_text().splitlines() if line.startswith("|")]
    return [[row[column] for row in rows] for column in (2, 3, 4)]


def dead_flags(reference_data: Path) -> str:
    return (reference_data.parent / "spec" / "engine-flags.md").read_text().split("never emit:", 1)[1]


@pytest.mark.parametrize(("engine", "column", "dead"), [(vllm, 0, 5), (sglang, 1, 3)])
def test_every_flag_is_in_the_table_of_checked_flags(
    reference_data: Path, engine: ModuleType, column: int, dead: int
) -> None:
    checked: set[str] = set()
    for name in re.findall(r"--[a-z\[\]-]+", " ".join(columns(reference_data)[column])):
        checked |= {name.replace("[no-]", ""), name.replace("[no-]", "no-")}
    assert set(engine.FLAGS) <= checked, set(engine.FLAGS) - checked
    gone = dead_flags(reference_data).split("\n\n", 1)[0].split("SGLang")[column]
    found = set(re.findall(r"--[a-z-]+", gone))
    assert len(found) == dead
    assert not found & set(engine.FLAGS)


def test_every_key_is_in_the_table_of_checked_keys(reference_data: Path) -> None:
    checked: set[str] = set()
    for cell in columns(reference_data)[2]:
        parent = ""
        for name in re.findall(r"`([a-z_.]+)", cell):
            if name.startswith("."):  # `kv_cache_config.free_gpu_memory_fraction`, `.max_tokens`
                name = parent + name
            parent = name.split(".")[0]
            checked.add(name)
    assert set(tensorrt_llm.KEYS) <= checked, set(tensorrt_llm.KEYS) - checked
