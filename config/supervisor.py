"""A small supervisor: starts services, starts them again when they die, and ends every process of the tree.

Each service is a process in a session of its own, so that Ctrl-C in the terminal reaches the supervisor only,
which ends the others in order. Its output goes to a file of its own. A service that dies is started again after
1, 2, 4 … 30 s; one that lived for a minute starts counting anew. Knows nothing of Django, Celery or Ridgeline.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from config import warden

LOG_BYTES = 10_000_000
HEALTHY_S = 60.0
MAX_DELAY_S = 30.0


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    argv: tuple[str, ...]
    pass_fds: tuple[int, ...] = ()


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    started_s: float
    deaths: int = 0
    restart_at_s: float | None = None


class Supervisor:
    """``keep`` are descriptors held open until the whole tree has ended (a lock on the data directory)."""

    def __init__(
        self, services: Sequence[Service], *, environment: Mapping[str, str], folder: Path, log_dir: Path,
        say: Callable[[str], None], keep: tuple[int, ...] = (), grace_s: float = warden.GRACE_S,
    ) -> None:  # fmt: skip
        self._services = {service.name: service for service in services}
        self._environment, self._folder, self._log_dir = dict(environment), folder, log_dir
        self._say, self._keep, self._grace_s = say, keep, grace_s
        self._tag = uuid.uuid4().hex
        self._terminal = os.isatty(1)
        self._running: dict[str, _Running] = {}
        self._warden: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._warden = subprocess.Popen(  # noqa: S603 - our own file, without importing the package around it
            [sys.executable, "-I", warden.__file__, self._tag], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd=self._folder, start_new_session=True, pass_fds=self._keep,
        )  # fmt: skip
        for name in self._services:
            self._running[name] = _Running(self._launch(name), time.monotonic())

    def tick(self) -> None:
        """Starts again what has died. Call it a few times a second.

        Raises KeyboardInterrupt when the terminal has gone: its SIGHUP goes to the session's leader only, which
        may be a program (make) that keeps it for itself.
        """
        if self._terminal and not os.isatty(1):
            raise KeyboardInterrupt
        now_s = time.monotonic()
        for name, state in self._running.items():
            if state.restart_at_s is None and state.process.poll() is not None:
                state.deaths = 1 if now_s - state.started_s > HEALTHY_S else state.deaths + 1
                delay_s = min(MAX_DELAY_S, 2.0 ** (state.deaths - 1))
                state.restart_at_s = now_s + delay_s
                self._say(
                    f"{name} ended ({_how(state.process.returncode)}); starting it again in {delay_s:.0f} s. "
                    f"Its log: {self.log_path(name)}"
                )
                # What the dead one had started must not work on beside its successor.
                warden.signal_all(warden.members(f"{self._tag}:{name}", []), signal.SIGKILL)
            elif state.restart_at_s is not None and now_s >= state.restart_at_s:
                state.process, state.started_s = self._launch(name), now_s
                state.restart_at_s = None

    def stop(self) -> None:
        """Ends every process of the tree; returns when none is left. Safe to call twice."""
        reaped = [state.process for state in self._running.values()]

        def reap() -> None:
            for process in reaped:
                process.poll()

        if not warden.end(self._tag, self.pids().values(), self._grace_s, reap):
            self._say("some processes would not end")
        self._running.clear()
        if self._warden is not None and self._warden.stdin is not None:
            with suppress(OSError):
                self._warden.stdin.close()
            self._warden.wait(timeout=30)
            self._warden = None

    def pids(self) -> dict[str, int]:
        """Process id of each service as last started."""
        return {name: state.process.pid for name, state in self._running.items()}

    def log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def _launch(self, name: str) -> subprocess.Popen[bytes]:
        service, path = self._services[name], self.log_path(name)
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        environment = self._environment | {warden.TAG: f"{self._tag}:{name}"}
        with path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - the commands are ours
                service.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
                cwd=self._folder, start_new_session=True, pass_fds=service.pass_fds,
            )  # fmt: skip
        if self._warden is not None and self._warden.stdin is not None:
            with suppress(OSError):
                os.write(self._warden.stdin.fileno(), f"{process.pid}\n".encode())
        return process


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit status {code}"


@contextmanager
def stopping_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and a terminal's hang-up raise KeyboardInterrupt once; later ones do not disturb the end."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def handler(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
