"""What there is to measure on, asked without torch where a web process asks."""

import json
import subprocess
import sys

import pytest

from calibration.engine import cpu, memory
from calibration.engine.client import REPOSITORY


def test_free_memory_is_part_of_all():
    total, free = memory.cpu_memory_bytes()
    assert 0 < free <= total


def test_a_container_s_limit_counts(tmp_path, monkeypatch):
    (tmp_path / "limit").write_text("1000000\n")
    (tmp_path / "used").write_text("400000\n")
    monkeypatch.setattr(memory, "_CGROUP_FILES", ((str(tmp_path / "limit"), str(tmp_path / "used")),))
    assert memory.cpu_memory_bytes() == (1_000_000, 600_000)
    (tmp_path / "limit").write_text("max\n")
    assert memory.cpu_memory_bytes()[0] > 1_000_000


def test_processor_without_a_name(monkeypatch):
    monkeypatch.setattr(cpu, "_cpuinfo", lambda field: "")
    assert cpu.cpu_model()
    assert not cpu.has_bfloat16()
    monkeypatch.setattr(cpu, "_cpuinfo", lambda field: "fpu avx512_bf16 sse" if field == "flags" else "")
    assert cpu.has_bfloat16()


def test_devices_are_one_json_list_with_the_cpu_first():
    answer = subprocess.run(
        [sys.executable, "-m", "calibration.engine.devices"], capture_output=True, cwd=REPOSITORY, check=True
    )
    first, *others = json.loads(answer.stdout)
    assert first["name"] == "cpu"
    assert first["label"]
    assert 0 < first["free_bytes"] <= first["total_bytes"]
    assert all(device["name"].startswith("cuda:") for device in others)


@pytest.mark.parametrize(
    "module",
    ["calibration.pipeline", "calibration.experiment", "calibration.engine.client", "calibration.measure"],
)
def test_processes_that_only_ask_never_load_torch_or_django(module):
    script = f"import sys, {module}; print([m for m in ('torch', 'django', 'celery') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=REPOSITORY, check=True)
    assert answer.stdout.strip() == b"[]"
