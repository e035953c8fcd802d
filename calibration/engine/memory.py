"""How much memory a process may still take here: the machine's word and its container's, whichever is less."""

from __future__ import annotations

import contextlib
from pathlib import Path

_CGROUP_FILES = (  # (limit, used): version 2, then version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def cpu_memory_bytes() -> tuple[int, int]:
    """(total, free) bytes of main memory. Free counts what the system would give up for us (caches)."""
    total, free = _machine_bytes()
    for limit_file, used_file in _CGROUP_FILES:
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and used is not None and limit < total:
            total = limit
            free = min(free, max(0, limit - used))
    return total, free


def _machine_bytes() -> tuple[int, int]:
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, rest = line.partition(":")
        values[key] = int(rest.split()[0]) * 1024
    return values["MemTotal"], values["MemAvailable"]


def _number(path: str) -> int | None:
    """A file's number; None when there is no such file or it says "max"."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None
