"""Memory that one simulation, or one step of the engine, frees is kept for the next.

A run of 20,000 requests, or a step of 500 tokens, has arrays of some megabytes each. By default glibc gives such arrays
back to the system as they are freed, and every new one begins with a fault for each of its pages: a fifth of a
cluster's run. So they are taken from the process's own heap, which keeps up to KEPT_BYTES of what is free at its end.
Servers of models on a CPU are run with allocators that do the same. Other C libraries are left alone.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

KEPT_BYTES: Final = 256 << 20
LARGEST_BYTES: Final = (
    32 << 20
)  # the most that glibc takes for the threshold above which arrays are mapped apart
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


@cache
def keep_freed() -> bool:
    """For this process, once; whether the C library could be told."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  no other library's mallopt means the same
        return bool(
            libc.mallopt(_MMAP_THRESHOLD, LARGEST_BYTES) and libc.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        )
    return False
