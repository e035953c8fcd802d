"""Zstandard archives, unpacked piece by piece.

Python 3.14 has the codec in its library (compression.zstd); before it, backports.zstd is that module's own
code as a package. Its decompressor takes a limit on what one call may give, so that a frame of a few bytes
that unpacks to gigabytes is stopped on the way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from planner.traffic.errors import refuse

if sys.version_info >= (3, 14):  # pragma: no cover
    from compression import zstd as codec
else:
    from backports import zstd as codec

ZSTD = b"\x28\xb5\x2f\xfd"
_PIECE_BYTES = 1 << 20
_WINDOW_LOG = 27
"""Frames that need more than 128 MiB of memory to unpack are refused, as the command line tool does."""


def unzstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The content of all frames. TrafficError for a damaged or cut archive."""
    frame = _decompressor()
    try:
        for piece in pieces:
            data = piece
            while True:
                if frame.eof:  # another frame may follow; padding with zeros is customary
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    frame = _decompressor()
                unpacked = frame.decompress(data, _PIECE_BYTES)
                if unpacked:
                    yield unpacked
                data = frame.unused_data if frame.eof else b""
                if not frame.eof and frame.needs_input:
                    break
    except codec.ZstdError as error:
        raise refuse(f"The Zstandard archive is damaged ({error}).", code="bad_archive") from error
    if not frame.eof:
        raise refuse("The Zstandard archive is cut off before its end.", code="bad_archive")


def _decompressor() -> Any:
    return codec.ZstdDecompressor(options={codec.DecompressionParameter.window_log_max: _WINDOW_LOG})
