"""Freed memory is kept: a second array of the same size needs no new pages."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from calibration.kept_memory import keep_freed
if sys.argv[1] == "kept" and not keep_freed():
    print("no glibc"); sys.exit()
for _ in range(3):
    np.zeros(1 << 20).fill(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.zeros(1 << 20).fill(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    environment = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # its default, which then does not grow by itself
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    if said == "no glibc":
        pytest.skip("another C library")
    return int(said)


def test_freed_arrays_are_used_again() -> None:
    pages = 20 * (8 << 20) // resource.getpagesize()
    assert faults("kept") < 0.05 * pages
