"""Traffic as one npz: compact arrays with a JSON description, and never a pickle.

The archive is read with the suspicion due to anything from outside: allow_pickle off, sizes checked before
unpacking, and every rule of `Traffic` checked again afterwards.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traffic.errors import TooLarge, TrafficError, refuse
from planner.traffic.model import Finding, PrefixHashes, Traffic

MAX_UNPACKED_BYTES = 1 << 30
_LEVEL = 3
_ARRAYS = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "priority", "request_class")


def to_npz_bytes(traffic: Traffic) -> bytes:
    """The whole traffic, compressed. `from_npz_bytes` gives an equal one."""
    arrays: dict[str, Any] = {
        name: getattr(traffic, name) for name in _ARRAYS if getattr(traffic, name) is not None
    }
    description: dict[str, Any] = {
        "version": 1,
        "source": traffic.source,
        "format": traffic.format,
        "rows_read": traffic.rows_read,
        "class_names": list(traffic.class_names),
        "recipe": dict(traffic.recipe),
        "warnings": [finding.to_dict() for finding in traffic.warnings],
    }
    if traffic.prefix_hashes is not None:
        arrays["hash_ids"] = traffic.prefix_hashes.flat
        arrays["hash_offsets"] = traffic.prefix_hashes.offsets
        description["block_tokens"] = traffic.prefix_hashes.block_tokens
    text = json.dumps(description, allow_nan=False).encode()
    return _packed({"description": np.frombuffer(text, np.uint8), **arrays})


def _packed(arrays: dict[str, NDArray[Any]]) -> bytes:
    """As np.savez_compressed, one narrowed array at a time and at a level that costs a third of zlib's usual one;
    entries carry no time, so that equal arrays give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _narrow(array), allow_pickle=False)
    return buffer.getvalue()


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """int64 as int32 where every value fits: half to compress, and the same after reading."""
    if array.dtype == np.int64 and array.min() >= -(2**31) and array.max() < 2**31:
        return array.astype(np.int32)
    return array


def from_npz_bytes(content: bytes) -> Traffic:
    """The traffic that to_npz_bytes stored. TrafficError for anything else, TooLarge before unpacking."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked_bytes = sum(entry.file_size for entry in archive.infolist())
        if unpacked_bytes > MAX_UNPACKED_BYTES:
            message = f"The stored traffic unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB."
            raise TooLarge("unpacked_bytes", MAX_UNPACKED_BYTES, message)
        with np.load(io.BytesIO(content), allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
        return _traffic(arrays, json.loads(arrays["description"].tobytes()))
    except TrafficError:
        raise
    except Exception as error:  # whatever a damaged archive makes zipfile, zlib, numpy or json say
        raise refuse(f"This is not a stored traffic: {error}", code="not_npz") from error


def _traffic(arrays: dict[str, Any], description: dict[str, Any]) -> Traffic:
    hashes = None
    if "hash_ids" in arrays:
        offsets = arrays["hash_offsets"].astype(np.int64, copy=False)
        hashes = PrefixHashes(arrays["hash_ids"], offsets, description.get("block_tokens"))
    wide = {np.dtype(np.int32): np.int64}
    return Traffic(
        **{
            name: arrays[name].astype(wide.get(arrays[name].dtype, arrays[name].dtype), copy=False)
            for name in _ARRAYS
            if name in arrays
        },
        source=str(description["source"]),
        format=str(description["format"]),
        rows_read=int(description["rows_read"]),
        class_names=tuple(description["class_names"]),
        prefix_hashes=hashes,
        recipe=description["recipe"],
        warnings=tuple(
            Finding(entry["code"], entry["message"], entry["count"], tuple(entry["lines"]))
            for entry in description["warnings"]
        ),
    )
