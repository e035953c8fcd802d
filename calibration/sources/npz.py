"""Arrays out of an npz that anybody may have sent: no pickles, and no more memory than the file itself has bytes for.

An npz is a zip of npy files. A small zip can unpack to gigabytes, and a header can claim any shape: numpy would
allocate it before it reads. So the sizes that the zip declares are bounded (zipfile reads no more than those), and a
header's shape must fit its member.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

MAX_MEMBERS = 64


def npz_names(data: bytes) -> frozenset[str]:
    """Names of the arrays in an npz. Raises ValueError for what is none."""
    return frozenset(_members(data))


def npz_arrays(data: bytes, names: Collection[str], max_bytes: int) -> dict[str, NDArray[np.float64]]:
    """Those of `names` that the npz has, flat and as float64; each at most `max_bytes`. Raises ValueError."""
    members = _members(data)
    return {name: _array(data, members[name], name, max_bytes) for name in names if name in members}


def _members(data: bytes) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise ValueError(f"is no npz of arrays: {str(error)[:200]}") from error
    if len(entries) > MAX_MEMBERS:
        raise ValueError(f"holds more than {MAX_MEMBERS} arrays")
    return {entry.filename.removesuffix(".npy"): entry for entry in entries}


def _array(data: bytes, entry: zipfile.ZipInfo, name: str, max_bytes: int) -> NDArray[np.float64]:
    if entry.file_size > max_bytes:
        raise ValueError(f"{name} is larger than {max_bytes:,} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            content = archive.read(entry)
        file = io.BytesIO(content)
        major, _ = np.lib.format.read_magic(file)
        if major not in (1, 2):
            raise ValueError(f"{name} is of npy version {major}")
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if math.prod(shape) * dtype.itemsize > len(content):
            raise ValueError(f"{name} has fewer bytes than its shape says")
        if dtype.kind not in "iuf":
            raise ValueError(f"{name} holds what is no number")
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False), dtype=np.float64).ravel()
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be read: {str(error)[:200]}") from error
