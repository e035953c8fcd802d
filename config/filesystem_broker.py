"""Celery's filesystem queue with whole messages only.

kombu's own transport opens a message's file, locks it and writes it; a reader that lists the folder in between moves
an empty file away, fails on its JSON, and the worker dies (seen on a loaded machine: a worker gone, its message
lost). The table of an exchange is truncated before it is locked, with the same end. Here files appear whole, by
rename inside the folder: a name ending in PART is none that a queue looks for. A file that is no JSON all the same
is put aside and logged.
"""

from __future__ import annotations

import fcntl
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import filesystem
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

PART = ".part"
log = logging.getLogger(__name__)


def write_whole(path: Path, content: str) -> None:
    """The file, complete, under its name: never seen half written."""
    part = path.with_name(f".{uuid.uuid4()}{PART}")
    part.write_text(content)
    part.replace(path)


_Channel: Any = filesystem.Channel  # its stubs are behind the code


class Channel(_Channel):  # type: ignore[misc]
    def _put(self, queue: str, payload: Any, **_: Any) -> None:
        name = f"{round(monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        write_whole(Path(self.data_folder_out) / name, dumps(payload))

    def _get(self, queue: str) -> Any:
        folder = Path(self.data_folder_in)
        for name in sorted(path.name for path in folder.iterdir()):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = folder / f".{name}{PART}"
            try:
                (folder / name).rename(taken)  # whoever renames it has it
            except OSError:
                continue
            try:
                payload = loads(bytes_to_str(taken.read_bytes()))
            except ValueError:
                log.error("a message of queue %s is not JSON: put aside as %s", queue, taken.name)
                continue
            taken.unlink(missing_ok=True)
            return payload
        raise Empty

    def get_table(self, exchange: str) -> list[filesystem.exchange_queue_t]:
        try:
            rows = loads(self._exchange_file(exchange).read_text())
        except FileNotFoundError:
            return []
        return [filesystem.exchange_queue_t(*row) for row in rows]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        bound = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        with self._changing():
            rows = self.get_table(exchange)
            if bound not in rows:
                write_whole(self._exchange_file(exchange), dumps([bound, *rows]))

    def _delete(self, queue: str, exchange: str, routing_key: str, pattern: str, *_: Any, **__: Any) -> None:
        self._purge(queue)
        bound = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        with self._changing():
            rows = self.get_table(exchange)
            if bound in rows:
                write_whole(self._exchange_file(exchange), dumps([row for row in rows if row != bound]))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One process at a time changes the tables of exchanges."""
        self.control_folder.mkdir(mode=0o700, exist_ok=True)
        with (self.control_folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Transport(filesystem.Transport):
    Channel = Channel
