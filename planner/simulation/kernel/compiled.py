"""How the kernel is compiled: without Python objects, without the interpreter's lock, cached on disk.

`compiled` marks the parts, `inlined` the few lines that run every step, `merged` large parts with one caller,
`entry` the functions that Python calls.

Only entries can be called from Python: a wrapper that unpacks all arrays of the state took as long to compile as the
part itself, and there are 80 parts.

No part allocates an array, so numba's reference counting is switched off (`_nrt`; numba refuses to compile a part
that would need it): counting the state's arrays at every access cost 85 % of the run time.

Only entries are cached, since their machine code contains the parts. numba decides by an entry's own file whether
its cache is stale, so the sources of all parts go into the entry's name: a change in any of them is a different
cache file. The cache lies where NUMBA_CACHE_DIR says, else beside the sources, else in the user's cache folder; where
none can be written (a read-only system) each process compiles the kernel anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from calibration import transfer
from calibration.steptime import scalar
from planner.simulation import gaps, profile
from planner.simulation.cluster import order

Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
INNER: dict[str, Any] = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Function) -> Function:
    return cast(Function, numba.njit(**INNER)(function))


def inlined(function: Function, *, from_python: bool = False) -> Function:
    return cast(Function, numba.njit(forceinline=True, **(OPTIONS if from_python else INNER))(function))


def merged(function: Function) -> Function:
    """Into its caller before types are inferred: for a large part with one caller, never compiled by itself."""
    return cast(Function, numba.njit(inline="always", **INNER)(function))


def entry(function: Function) -> Function:
    function.__qualname__ = f"{function.__qualname__}_{_digest()}"
    try:
        return cast(Function, numba.njit(cache=True, **OPTIONS)(function))
    except RuntimeError:  # numba found no folder that it can write
        return cast(Function, numba.njit(**OPTIONS)(function))


def _digest() -> str:
    others = [Path(str(module.__file__)) for module in (scalar, transfer, gaps, profile, order)]
    sources = [*sorted(Path(__file__).parent.glob("*.py")), *others]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
