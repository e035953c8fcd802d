"""The bytes of a file that may be gzipped, never more of them than allowed."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import IO

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 2**16


class UnpackError(ValueError):
    """The file is too large (`TooLarge`), or not a whole gzip stream."""


class TooLarge(UnpackError):
    """More bytes than allowed, packed or unpacked."""


def read_bytes(source: str | Path | IO[bytes], max_bytes: int) -> bytes:
    """Content of a path or binary file, unpacked if it is gzip (by content). Raises UnpackError, OSError."""
    with Path(source).open("rb") if isinstance(source, str | Path) else nullcontext(source) as file:
        if file.seekable():
            file.seek(0)
        head = file.read(2)
        if head != _GZIP_MAGIC:
            data = head + file.read(max_bytes + 1 - len(head))
            if len(data) > max_bytes:
                raise TooLarge(f"the file is larger than {max_bytes:,} bytes")
            return data
        return _gunzip(head, file, max_bytes)


def _gunzip(head: bytes, file: IO[bytes], max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    stream = zlib.decompressobj(wbits=31)
    pending = head + file.read(_PIECE)
    try:
        while pending:
            part = stream.decompress(pending, max_bytes + 1 - size)
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                raise TooLarge(f"the unpacked file is larger than {max_bytes:,} bytes")
            pending = stream.unconsumed_tail
            if stream.eof:  # gzip files may be joined end to end
                pending = stream.unused_data or file.read(_PIECE)
                if pending:
                    stream = zlib.decompressobj(wbits=31)
            elif not pending:
                pending = file.read(_PIECE)
    except zlib.error as error:
        raise UnpackError("the gzip stream is damaged") from error
    if not stream.eof:
        raise UnpackError("the gzip stream ends too early")
    return b"".join(parts)
