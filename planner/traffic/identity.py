"""Which traffic this is: a digest of its arrays, so that a recipe can name what it was made of and prove what it
makes. Names, sources and findings are not part of it; the same requests have the same digest wherever they lie."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from planner.traffic.model import Traffic

_ARRAYS = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "priority", "request_class")


def arrays_sha256(traffic: Traffic) -> str:
    """Hex SHA-256 of every array's name, type and bytes (little-endian), of the classes' names and of the size of
    the prefix blocks."""
    digest = hashlib.sha256()
    arrays = [(name, getattr(traffic, name)) for name in _ARRAYS]
    hashes = traffic.prefix_hashes
    if hashes is not None:
        arrays += [("hash_ids", hashes.flat), ("hash_offsets", hashes.offsets)]
    for name, array in arrays:
        if array is not None:
            plain = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
            digest.update(f"{name} {plain.dtype.str} {len(plain)}\n".encode())
            digest.update(plain.data)
    rest = [list(traffic.class_names), hashes.block_tokens if hashes is not None else None]
    digest.update(json.dumps(rest).encode())
    return digest.hexdigest()
