"""Starts an engine process and talks to it. Used as a context manager: the process is gone afterwards.

The process gets one end of a socket pair, so nothing listens anywhere. Its environment asks every library
for one thread, and malloc to keep what it has: giving pages back and taking them again between two layers
would be timed as part of the step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from calibration.architecture import Architecture
from calibration.engine import wire
from calibration.engine.interface import ChunkTuple, StepTiming

REPOSITORY = Path(__file__).resolve().parents[2]
STDERR_TAIL_BYTES = 4_000
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "PYTHONUNBUFFERED": "1",
}


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH")
    return str(REPOSITORY) + (os.pathsep + inherited if inherited else "")


class EngineError(RuntimeError):
    """The engine could not start or failed; the message ends with the last lines it wrote."""


class EngineClient:
    """A `Runner` whose engine is another process. Not for several threads at once."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        device: str = "cpu",
        dtype: str = "auto",
        kv_tokens: int,
        max_positions: int,
        seed: int = 0,
        timeout_s: float = 600.0,
        lock_descriptor: int | None = None,
    ) -> None:
        """Starts the process and builds the model; raises EngineError with the engine's own words.

        `lock_descriptor`: the device lock's, kept open by the process as long as it lives.
        """
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(timeout_s)
        kept = (theirs.fileno(),) if lock_descriptor is None else (theirs.fileno(), lock_descriptor)
        command = [sys.executable, "-m", "calibration.engine.process"]
        command += ["--socket-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, no outside input
                command,
                cwd=REPOSITORY,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": _python_path()},
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=kept,
            )
        start: dict[str, object] = {"op": "start", "architecture": architecture.to_dict(), "device": device}
        start |= {"dtype": dtype, "kv_tokens": kv_tokens, "max_positions": max_positions, "seed": seed}
        try:
            answer = self._request(start)
        except BaseException:
            self.close()
            raise
        self._environment: dict[str, object] = answer["environment"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def environment(self) -> dict[str, object]:
        return dict(self._environment)

    def measure(self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int) -> StepTiming:
        """As Runner.measure; raises EngineError when the engine failed, was killed or does not answer."""
        answer = self._request(
            {
                "op": "measure",
                "decode_contexts": [int(context) for context in decode_contexts],
                "chunks": [[int(query), int(cached), bool(sampled)] for query, cached, sampled in chunks],
                "seed": int(seed),
            }
        )
        return StepTiming(float(answer["seconds"]), float(answer["host_gap_s"]), bool(answer["contended"]))

    def usage(self) -> dict[str, float]:
        """The engine's cpu_s so far and peak_bytes of memory."""
        answer = self._request({"op": "usage"})
        return {"cpu_s": float(answer["cpu_s"]), "peak_bytes": float(answer["peak_bytes"])}

    def close(self) -> None:
        """Ends the process, by request or else by force. May be called twice."""
        with contextlib.suppress(wire.WireClosed, TimeoutError, OSError):
            self._connection.settimeout(1.0)
            wire.send(self._connection, {"op": "stop"})
        self._connection.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, message: dict[str, object]) -> dict[str, Any]:
        try:
            wire.send(self._connection, message)
            answer: dict[str, Any] = wire.receive(self._connection)
        except TimeoutError:
            self._process.kill()
            raise EngineError(f"the engine did not answer {message['op']!r} in time") from None
        except (wire.WireClosed, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5.0)
            raise EngineError(f"the engine process ended{self._how()}{self._tail()}") from None
        if answer.get("ok") is not True:
            raise EngineError(f"{answer.get('error', 'unknown error')}")
        return answer

    def _how(self) -> str:
        code = self._process.poll()
        if code is None:
            return ""
        if code == -signal.SIGKILL:
            return " (signal 9: somebody killed it, or the system did for want of memory)"
        return f" (signal {-code})" if code < 0 else f" (exit status {code})"

    def _tail(self) -> str:
        """The last lines of what the process wrote."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - STDERR_TAIL_BYTES))
        text = self._errors.read().decode(errors="replace").strip()
        return f": {text}" if text else ""
