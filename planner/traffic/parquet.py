"""Parquet, where its library is installed (an extra: pyarrow is larger than the rest of the planner).

The columns become CSV, batch by batch, and are then read as any CSV is: one set of rules and messages, whose
line n + 1 is the file's row n. Columns of lists, objects or bytes are left out, unread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from planner.traffic.errors import TooLarge, TrafficError, refuse

_BATCH_ROWS = 50_000
HOW_TO_INSTALL = "pip install --require-hashes -r requirements-parquet.lock"


def csv_of_parquet(pieces: Iterator[bytes], most_rows: int) -> Iterator[bytes]:
    """UTF-8 CSV of the file's plain columns. TrafficError where pyarrow is missing or the file is damaged."""
    try:
        from pyarrow import lib, parquet
    except ImportError as error:
        message = (
            f"This is a Parquet file, and reading it needs pyarrow, which is not installed: {HOW_TO_INSTALL}."
        )
        raise refuse(message, code="parquet_not_installed") from error
    with tempfile.TemporaryFile() as spool:  # its index is at its end
        for piece in pieces:
            spool.write(piece)
        spool.seek(0)
        try:
            yield from _csv(parquet.ParquetFile(spool), most_rows)
        except TrafficError:
            raise
        except (lib.ArrowException, OSError, ValueError, OverflowError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise refuse(f"The Parquet file is damaged ({reason}).", code="bad_archive") from error


def _csv(file: Any, most_rows: int) -> Iterator[bytes]:
    import io

    from pyarrow import csv, types

    if file.metadata.num_rows > most_rows:
        message = f"The file has more than {most_rows:,} rows, the most that are read."
        raise TooLarge("rows", most_rows, message)
    plain = [
        field.name
        for field in file.schema_arrow
        if not types.is_nested(field.type)
        and not types.is_binary(field.type)
        and not types.is_large_binary(field.type)
    ]
    if not plain:
        raise refuse("The Parquet file has no plain columns.", code="unknown_format")
    first = True
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=plain):
        out = io.BytesIO()
        csv.write_csv(batch, out, csv.WriteOptions(include_header=first, quoting_style="needed"))
        first = False
        yield out.getvalue()
