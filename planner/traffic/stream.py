"""Bytes of an upload -> blocks of whole lines of text, with a cap at every stage.

Nothing is read whole: pieces of a mebibyte go through unpacking (gzip, Zstandard), re-coding (UTF-16) and
cutting at line ends, so memory stays flat and a file that unpacks to a thousand times its size is stopped on the way.
What the file is packed or encoded in is recognised by its first bytes; what is not read is named.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from planner.traffic.errors import TooLarge, TrafficError, refuse
from planner.traffic.parquet import csv_of_parquet
from planner.traffic.zstd import ZSTD, unzstd

PIECE_BYTES = 1 << 20
MIB = 1 << 20
ARRAY_BYTES = 64 * MIB
"""An array is one value: it is held whole."""


class BinaryReader(Protocol):
    """All that is asked of a file: Django's uploads and files opened with "rb" have it."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on what is read. Passing one raises TooLarge with its name and value."""

    file_bytes: int = 200 * MIB
    unpacked_bytes: int = 1024 * MIB
    rows: int = 5_000_000
    line_bytes: int = 4 * MIB
    hash_ids: int = 20_000_000
    turns: int = 500_000


LIMITS = Limits()

_FOREIGN = (
    (b"PK\x03\x04", "a zip archive or an Excel workbook"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF"),
    (b"\xff\xfe\x00\x00", "text in UTF-32"),
    (b"\x00\x00\xfe\xff", "text in UTF-32"),
)


@dataclass(slots=True)
class Text:
    """The opened file. `blocks` gives (number of the first line, bytes that end with a newline), once;
    `encoding` can change to windows-1252 while they are read; `cut` says that not all of the file is given,
    `array` that its lines are the elements of one JSON array."""

    blocks: Iterator[tuple[int, bytes]]
    compression: str
    encoding: str
    final_newline: bool = field(default=True)
    cut: bool = field(default=False)
    array: bool = field(default=False)


def open_text(
    file: BinaryReader,
    limits: Limits,
    on_bytes: Callable[[int], None] | None = None,
    encoding: str | None = None,
) -> Text:
    """Recognise packing and encoding from the first bytes; `encoding` overrules what they say of the latter.
    `on_bytes` hears the packed bytes read so far.

    Raises TrafficError for an empty file, one of another kind (by name), a damaged archive, NUL bytes and
    undecodable text; TooLarge over the limits. Some of these come while the blocks are read."""
    compression, pieces = _unpacked(_pieces(file, limits, on_bytes), limits)
    found, pieces = _utf8(pieces, encoding)
    text = Text(iter(()), compression, found)
    text.blocks = _line_blocks(pieces, limits, text)
    return text


def unpacks_beyond(file: BinaryReader, limits: Limits, most_bytes: int) -> bool:
    """Whether the file holds more than so many bytes, unpacked. What is wrong with it is for `open_text` to say."""
    total = 0
    try:
        for piece in _unpacked(_pieces(file, limits, None), limits)[1]:
            total += len(piece)
            if total > most_bytes:
                return True
    except TooLarge:
        return True
    except TrafficError:
        return False
    return False


def _pieces(file: BinaryReader, limits: Limits, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    total = 0
    while piece := file.read(PIECE_BYTES):
        total += len(piece)
        if total > limits.file_bytes:
            message = f"The file is larger than {_size(limits.file_bytes)}, the most that is read."
            raise TooLarge("file_bytes", limits.file_bytes, message)
        if on_bytes:
            on_bytes(total)
        yield piece


def _unpacked(pieces: Iterator[bytes], limits: Limits) -> tuple[str, Iterator[bytes]]:
    head, pieces = _peek(pieces, 16)
    if not head:
        raise refuse("The file is empty.", code="empty")
    for magic, name in _FOREIGN:
        if head.startswith(magic):
            message = (
                f"This is {name}; traffic is read as CSV or JSON lines (plain, gzip or Zstandard) or Parquet."
            )
            raise refuse(message, code="not_text")
    if head.startswith(b"\x1f\x8b"):
        return "gzip", _capped(_packed_once(_gunzip(pieces)), limits)
    if head.startswith(ZSTD):
        return "zstd", _capped(_packed_once(unzstd(pieces)), limits)
    if head.startswith(b"PAR1"):
        return "parquet", _capped(csv_of_parquet(pieces, limits.rows), limits)
    return "none", pieces


def _packed_once(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Refuses what is packed again inside, which would otherwise pass for a text that is none."""
    head, pieces = _peek(pieces, 16)
    inside = next((name for magic, name in _FOREIGN if head.startswith(magic)), "")
    if head.startswith((b"\x1f\x8b", ZSTD, b"PAR1")):
        inside = "another archive"
    if inside:
        raise refuse(f"The archive holds {inside}: unpack it once, and upload that.", code="not_text")
    yield from pieces


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    try:
        for piece in pieces:
            rest = piece
            while rest:
                if member.eof:  # another member may follow; padding with zeros is customary
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(rest, PIECE_BYTES)
                rest = member.unused_data if member.eof else member.unconsumed_tail
    except zlib.error as error:
        raise refuse(f"The gzip archive is damaged ({error}).", code="bad_archive") from error
    if not member.eof:
        raise refuse("The gzip archive is cut off before its end.", code="bad_archive")


def _capped(pieces: Iterator[bytes], limits: Limits) -> Iterator[bytes]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limits.unpacked_bytes:
            size = _size(limits.unpacked_bytes)
            message = f"The archive unpacks to more than {size}, the most that is read."
            raise TooLarge("unpacked_bytes", limits.unpacked_bytes, message)
        yield piece


def _utf8(pieces: Iterator[bytes], chosen: str | None) -> tuple[str, Iterator[bytes]]:
    head, pieces = _peek(pieces, 4)
    if not head:
        raise refuse("The file is empty.", code="empty")
    if chosen and chosen != "utf-8":
        mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(chosen, b"")
        if mark and head.startswith(mark):
            pieces = _without_first(pieces, len(mark))
        python_name = "cp1252" if chosen == "windows-1252" else chosen
        return chosen, _recoded(pieces, python_name, chosen)
    if chosen and not head.startswith(codecs.BOM_UTF8):
        return "utf-8", _recoded(pieces, "utf-8", "UTF-8")
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig", _without_first(pieces, 3)
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16", _recoded(_without_first(pieces, 2), "utf-16-le")
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16", _recoded(_without_first(pieces, 2), "utf-16-be")
    if len(head) == 4 and head[0] and not head[1] and head[2] and not head[3]:
        return "utf-16", _recoded(pieces, "utf-16-le")
    if len(head) == 4 and not head[0] and head[1] and not head[2] and head[3]:
        return "utf-16", _recoded(pieces, "utf-16-be")
    return "utf-8", pieces


def _recoded(pieces: Iterator[bytes], encoding: str, name: str = "UTF-16") -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        raise refuse(f"The file is not in {name}: {error}.", code="encoding", field="file") from error


def _line_blocks(pieces: Iterator[bytes], limits: Limits, text: Text) -> Iterator[tuple[int, bytes]]:
    line = 1
    carry = b""
    head, pieces = _peek(pieces, 16)
    # One JSON array is often one line.
    most_bytes = max(limits.line_bytes, ARRAY_BYTES) if head.lstrip()[:1] == b"[" else limits.line_bytes
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if end:
            block, carry = carry + piece[:end], piece[end:]
            _check_text(block, line, text)
            yield line, block
            line += block.count(b"\n")
        else:
            carry += piece
        if len(carry) > most_bytes:
            message = f"The line is longer than {_size(most_bytes)}, the most that is read."
            raise TooLarge("line_bytes", most_bytes, message, line)
    if carry:
        text.final_newline = False
        _check_text(carry, line, text)
        yield line, carry + b"\n"


def _check_text(block: bytes, line: int, text: Text) -> None:
    position = block.find(b"\0")
    if position >= 0:
        line += block.count(b"\n", 0, position)
        raise refuse("There is a NUL byte: this is not a text file.", code="nul_byte", line=line)
    if not block.isascii() and not text.encoding.startswith("windows"):
        try:
            block.decode()
        except UnicodeDecodeError:
            text.encoding = "windows-1252"


def decoded(field: bytes) -> str:
    """UTF-8 where it is that, else Windows-1252 with a sign for what even that does not know."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        return field.decode("cp1252", errors="replace")


def _peek(pieces: Iterator[bytes], count: int) -> tuple[bytes, Iterator[bytes]]:
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= count:
            break
    return head[:count], chain([head] if head else [], pieces)


def _without_first(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    head, pieces = _peek(pieces, count)
    yield next(pieces)[len(head) :]
    yield from pieces


def _size(count: int) -> str:
    return f"{count // MIB:,} MiB" if count >= MIB else f"{count:,} bytes"
