"""Memory that one simulation frees is kept for the next.

A run of 20,000 requests has arrays of some megabytes each. By default glibc gives such arrays back to the system as
they are freed, and every new one begins with a fault for each of its pages: a fifth of a cluster's run. So they are
taken from the process's own heap, which keeps up to KEPT_BYTES of what is free at its end. Other C libraries are left
alone.

And what a process has loaded by then (modules, compiled functions) lives as long as it does: the collector of cycles,
which would look through all of it again and again while a search makes thousands of small objects, is told so.
"""

from __future__ import annotations

import ctypes
import gc
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
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  no other library's mallopt means the same
        return bool(
            libc.mallopt(_MMAP_THRESHOLD, LARGEST_BYTES) and libc.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        )
    return False
