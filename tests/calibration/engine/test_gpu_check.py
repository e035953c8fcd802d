"""The script for a borrowed GPU, on the CPU: what it would run there, with tiny models."""

import json
import os
import subprocess

import pytest
import torch

from calibration.bundles import bundled
from calibration.engine import check_device
from calibration.engine.client import REPOSITORY

pytest.importorskip("triton")
SCRIPT = REPOSITORY / "scripts" / "gpu_check.sh"


def run(*arguments, **environment):
    return subprocess.run(
        [str(SCRIPT), *arguments], cwd=REPOSITORY, capture_output=True, text=True,
        env={key: value for key, value in os.environ.items() if key != "OUT"} | {"DEVICE": "cpu"} | environment,
    )  # fmt: skip


def test_quick_checks_the_engine_and_says_where_and_with_what(tmp_path):
    answer = run("quick", OUT=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    found = json.loads((tmp_path / "quick.json").read_text())
    assert found["dry_run"] and found["right"]
    assert found["checks"][0]["logits"] < 1e-4
    assert [check["name"] for check in found["checks"]] == ["deepseek float32 unified", "experts float8"]
    assert found["checks"][1]["right"] is True
    assert found["ceilings"]["copy_bytes_per_s"] > 0
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert {"commit", "device", "mode", "gpu", "started_at"} <= set(provenance)
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.slow
def test_full_calibrates_too(tmp_path):
    answer = run("full", str(tmp_path))
    assert answer.returncode in (0, 1), (
        answer.stderr
    )  # a tiny model on a busy core may be refused by the gate
    document = json.loads((tmp_path / "dry-run.json").read_text())
    assert document["content"]["environment"]["ceilings"]
    assert len(list(tmp_path.iterdir())) <= 8
    (entry,) = bundled(tmp_path.parent)  # what it writes is what is bundled, as it is
    assert (entry.name, entry.problem) == (f"{tmp_path.name}/dry-run", "")
    assert entry.engine.startswith("ridgeline torch")
    assert entry.provenance["device"] == "cpu"


@pytest.mark.slow
def test_replay_serves_and_compares(tmp_path):
    answer = run("replay", str(tmp_path))
    assert answer.returncode in (0, 1), answer.stderr  # a tiny model on a busy core keeps no bar
    if "not published" in answer.stdout:
        return
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["requests"] == 60
    assert {line["label"] for line in report["lines"]} >= {"TTFT p50", "ITL p99"}
    assert "predicted" in answer.stdout
    assert len(list(tmp_path.iterdir())) <= 8


def test_what_it_cannot_do_it_says():
    answer = run()
    assert answer.returncode == 2
    assert "quick|full|replay" in answer.stderr
    assert "Exit status" in answer.stderr


def test_a_wrong_engine_is_found(monkeypatch):
    """A kernel that attends to one token too few: the picked tokens or the logits must show it."""
    from calibration.engine.kernels import operations

    right = operations.attend_decodes

    def wrong(queries, pool, tables, lengths, out, **options):
        right(queries, pool, tables, (lengths - 1).clamp_min(0), out, **options)

    monkeypatch.setattr(operations, "attend_decodes", wrong)
    monkeypatch.setattr(check_device, "_DRY", ({"a": 2, "b": 3}, {"a": 1, "b": 1}))
    found, _ = check_device.checks("cpu", dry=True)
    assert found["right"] is False
    assert found["logits"] > check_device.TOLERANCE["float32"]


def test_wrong_experts_are_found_and_a_device_without_eight_bits_says_why(monkeypatch):
    """A kernel that forgets the scales of the columns; a device that has no such products."""
    from calibration.engine import check_experts
    from calibration.engine.kernels import experts

    right = experts._multiplied

    def unscaled(x, weights, scales, *rest):
        return right(x, weights, None if scales is None else (scales[0], torch.ones_like(scales[1])), *rest)

    monkeypatch.setattr(experts, "_multiplied", unscaled)
    found = check_experts.checked_experts("cpu", dry=True)
    assert found["right"] is False
    monkeypatch.setattr(check_experts, "why_no_eight_bits", lambda device: "it is too old")
    found = check_experts.checked_experts("cpu", dry=True)
    assert (found["right"], found["words"]) == (None, "not run: it is too old")
