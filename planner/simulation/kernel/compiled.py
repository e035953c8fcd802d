"""How the kernel is compiled: without Python objects, without the interpreter's lock, cached on disk.

`compiled` marks the parts; `entry` marks the one function that Python calls. Only the entry is cached, since its
machine code contains the parts. numba decides by the entry's own file whether its cache is stale, so the sources of
all parts go into the entry's name: a change in any of them is a different cache file. The cache lies where
NUMBA_CACHE_DIR says, else beside the sources, else in the user's cache folder; where none can be written (a
read-only system) the kernel is compiled anew by each process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from calibration.steptime import scalar

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """For the few lines that run every step: a call would pass every array field by field."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy", forceinline=True)(function))


def entry(function: Function) -> Function:
    function.__qualname__ = f"{function.__qualname__}_{_digest()}"
    try:
        return cast(Function, numba.njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError:  # numba found no folder that it can write
        return compiled(function)


def _digest() -> str:
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(scalar.__file__)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
