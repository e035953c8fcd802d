"""How the kernel is compiled: without Python objects, without the interpreter's lock, cached on disk.

`compiled` marks the parts, `inlined` the few lines that run every step, `merged` large parts with one caller,
`entry` the functions that Python calls.

Only entries can be called from Python, which saves every part two wrappers.

No part allocates an array, so numba's reference counting is switched off (`_nrt`; numba refuses to compile a part
that would need it): counting the state's arrays at every access cost 85 % of the run time.

Only entries are cached, since their machine code contains the parts. numba decides by an entry's own file whether
its cache is stale, so the sources of all parts go into the entry's name: a change in any of them is a different
cache file. The cache lies where NUMBA_CACHE_DIR says, else beside the sources, else (nobody may write there) in
RIDGELINE_DATA_DIR/numba, else in the user's cache folder; where none can be written each process compiles anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
from numba import types

from calibration import transfer
from calibration.steptime import scalar
from planner.simulation import gaps, luck, profile, time_bins
from planner.simulation.cluster import order

Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
#: numba's settings; its stubs name none of them.
SETTINGS: Any = numba.config
#: What Python can call, as it was made.
entries: list[Any] = []
INNER: dict[str, Any] = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Function) -> Function:
    return cast(Function, _once(numba.njit(**INNER)(function)))


def inlined(function: Function, *, from_python: bool = False) -> Function:
    options = OPTIONS if from_python else INNER
    return cast(Function, _once(numba.njit(forceinline=True, **options)(function)))


def merged(function: Function) -> Function:
    """Into its caller before types are inferred: for a large part with one caller, never compiled by itself."""
    return cast(Function, numba.njit(inline="always", **INNER)(function))


def entry(function: Function) -> Function:
    function.__qualname__ = f"{function.__qualname__}_{sources_digest()}"
    try:
        dispatcher = numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # numba found no folder that it can write
        dispatcher = numba.njit(**OPTIONS)(function)
    entries.append(dispatcher)
    return cast(Function, dispatcher)


def cache_folder() -> Path | None:
    """Where the machine code of entries is kept; None: nowhere, or numba looks for a place in the user's home."""
    if SETTINGS.CACHE_DIR:
        return Path(SETTINGS.CACHE_DIR)
    return next((folder for folder in _folders() if _can_write(folder)), None)


def _folders() -> Iterator[Path]:
    yield Path(__file__).parent / "__pycache__"
    if data := os.environ.get("RIDGELINE_DATA_DIR"):
        yield Path(data).resolve() / "numba"


def _can_write(folder: Path) -> bool:
    """As numba finds it out: permissions say nothing of read-only file systems, nor anything to root."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _choose_folder() -> None:
    beside, *others = _folders()
    if not SETTINGS.CACHE_DIR and not _can_write(beside):
        SETTINGS.CACHE_DIR = next((str(folder) for folder in others if _can_write(folder)), "")


def kernel_version() -> str:
    """Machine code is good for these sources, this numba and this processor."""
    return f"{sources_digest()}-{numba.__version__}-{llvmlite.binding.get_host_cpu_name()}"


def sources_digest() -> str:
    """Of the simulator that plans run: another one may give other answers."""
    others = [
        Path(str(module.__file__)) for module in (scalar, transfer, gaps, luck, profile, order, time_bins)
    ]
    sources = [*sorted(Path(__file__).parent.glob("*.py")), *others]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def _once(dispatcher: Any) -> Any:
    """One machine code of a part, however it is called.

    numba compiles a part again for each constant that is handed to it, and for 32 bits as for 64.
    """
    resolve = dispatcher.get_call_template

    def resolve_widened(arguments: Sequence[types.Type], keywords: Mapping[str, types.Type]) -> Any:
        named = {name: _widened(kind) for name, kind in keywords.items()}
        return resolve(tuple(_widened(kind) for kind in arguments), named)

    dispatcher.get_call_template = resolve_widened
    return dispatcher


def _widened(kind: types.Type) -> types.Type:
    kind = types.unliteral(kind)
    return types.int64 if kind in types.signed_domain else kind


_choose_folder()
