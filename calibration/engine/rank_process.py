"""One engine process as its starter sees it: started, asked, and ended whatever happens.

The process gets one end of a socket pair, so nothing listens anywhere for our requests. (Ranks of one model talk to
each other by NCCL or gloo, which listen on the loopback interface while they live.) Its environment asks every
library for one thread, malloc to keep what it has (giving pages back and taking them again between two layers
would be timed as part of the step), and oneDNN to keep every product that it has compiled: a product is compiled for
the number of rows it meets, and the 1,024 it keeps by default are gone before steps of 1 to 512 tokens have come
round once (five products each), so that compiling, 1 to 9 ms a product on one core, would be timed with most of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from calibration.engine import wire

REPOSITORY = Path(__file__).resolve().parents[2]
STDERR_TAIL_BYTES = 4_000
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(1 << 16),
    "PYTHONUNBUFFERED": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


class RankProcess:
    """A process and our end of its socket."""

    def __init__(self, python_path: str, timeout_s: float, locks: tuple[int, ...]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.connection, theirs = socket.socketpair()
        self.connection.settimeout(timeout_s)
        kept = (theirs.fileno(), *locks)
        command = [sys.executable, "-m", "calibration.engine.process"]
        command += ["--socket-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, no outside input
                command,
                cwd=REPOSITORY,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": python_path},
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=kept,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, object]) -> None:
        """Raises wire.WireClosed or OSError when it has gone."""
        wire.send(self.connection, message)

    def receive(self) -> dict[str, Any]:
        """Its next answer; raises wire.WireClosed, TimeoutError."""
        return wire.receive(self.connection)

    def last_words(self) -> str:
        """How it ended, as far as it has, and the last lines of what it wrote."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - STDERR_TAIL_BYTES))
        text = self._errors.read().decode(errors="replace").strip()
        return self._how() + (f": {text}" if text else "")

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Ends the process, by request or else by force. May be called twice."""
        self.ask_to_stop()
        self.connection.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def ask_to_stop(self) -> None:
        with contextlib.suppress(wire.WireClosed, TimeoutError, OSError):
            self.connection.settimeout(1.0)
            wire.send(self.connection, {"op": "stop"})

    def _how(self) -> str:
        code = self._process.poll()
        if code is None:
            return ""
        if code == -signal.SIGKILL:
            return " (signal 9: somebody killed it, or the system did for want of memory)"
        return f" (signal {-code})" if code < 0 else f" (exit status {code})"
