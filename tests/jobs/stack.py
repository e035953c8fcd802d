"""A whole installation for one test module: its own data directory, database and queue, real worker processes.

Embedded (SQLite, files) by default. Where DATABASE_URL or REDIS_URL is set, a temporary database on that server and
an unused database number of that Redis.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis

from config import tree, warden
from tests.ops.services import PATIENCE_S, postgres_database, wait_for

NOBODY = {"REDIS_URL": "redis://127.0.0.1:9/0"}  # a port where nothing listens
ROOT = Path(__file__).resolve().parents[2]


class Stack:
    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.tag = folder, f"test-{folder.name}-{os.getpid()}"
        self._environment = environment | {warden.TAG: self.tag}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._drivers: dict[bool, subprocess.Popen[str]] = {}
        # Held here, as the tree does: whoever connects while the web server is away is answered by the next one.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def manage(self, *words: str) -> None:
        subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self._environment,
            check=True,
            timeout=PATIENCE_S,
        )

    def start(self, *names: str, **changes: str) -> subprocess.Popen[bytes]:
        """Starts services of the process tree (web, device, default, beat), all at once, their environment changed by
        `changes`, and waits until each says it is ready. The last one's process."""
        listen_fd = self._listener.fileno()
        services = {service.name: service for service in tree.services(listen_fd)}
        before = {name: len(self.log(name)) for name in names}
        for name in names:
            with self._log_path(name).open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    services[name].argv, cwd=ROOT, env=self._environment | changes, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    pass_fds=services[name].pass_fds,
                )  # fmt: skip
        for name in names:
            self._await_ready(name, before[name])
        return self.processes[names[-1]]

    def start_missing(self, *names: str) -> None:
        """Those of the services that do not run."""
        if missing := [name for name in names if name not in self.processes]:
            self.start(*missing)

    def _await_ready(self, name: str, before: int) -> None:
        process = self.processes[name]
        words = {"beat": "beat: Starting", "web": "Booting worker"}.get(name, "ready.")
        wait_for(
            lambda: words in self.log(name)[before:] or process.poll() is not None, lambda: self.log(name)
        )
        assert process.poll() is None, self.log(name)

    def kill(self, name: str) -> None:
        """kill -9, with its pool."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """As the supervisor would: asks politely, then by force."""
        process = self.processes.pop(name)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def children(self, name: str) -> list[int]:
        """Process ids of the pool children of a worker."""
        tasks = Path(f"/proc/{self.processes[name].pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        return [pid for pid in children if b"celery" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def log(self, name: str) -> str:
        path = self._log_path(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def _log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def call(self, name: str, *, cut_off: bool = False, **arguments: Any) -> Any:
        """A call of tests/jobs/driver.py, which is a process too, as the web server would be. ``cut_off``: of
        another one, whose broker does not answer."""
        if cut_off not in self._drivers:
            self._drivers[cut_off] = self._start_driver(NOBODY if cut_off else {})
        driver = self._drivers[cut_off]
        assert driver.stdin is not None and driver.stdout is not None
        driver.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
        driver.stdin.flush()
        line = driver.stdout.readline()
        assert line, self.log("driver")
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def _start_driver(self, changes: dict[str, str]) -> subprocess.Popen[str]:
        with self._log_path("driver").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.jobs.driver"], cwd=ROOT, env=self._environment | changes, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip

    def wait_for_status(self, pk: str, *statuses: str, call: str = "row") -> dict[str, Any]:
        row: dict[str, Any] = {}

        def reached() -> bool:
            row.update(self.call(call, pk=pk))
            return row["status"] in statuses or row["status"] not in ("queued", "running")

        wait_for(reached, lambda: f"{statuses}; the row is {row}\n{self._tails()}")
        assert row["status"] in statuses, row
        return row

    def _tails(self) -> str:
        return "\n".join(f"{name}: {self.log(name)[-2000:]}" for name in self.processes)

    def wait_for_plan(self, pk: str, *statuses: str) -> dict[str, Any]:
        return self.wait_for_status(pk, *statuses, call="plan_row")

    def wait_for_message(self, message: str) -> None:
        """Until the device worker has dealt with the message."""
        wait_for(lambda: f"[{message}] succeeded" in self.log("device"), lambda: self.log("device")[-3000:])

    def end(self) -> None:
        """Everything it started has ended; a second time nothing is left to do."""
        self._listener.close()
        while self._drivers:
            self._drivers.popitem()[1].communicate()
        warden.end(self.tag, [process.pid for process in self.processes.values()], 1.0, self._reap)
        for process in self.processes.values():
            process.wait(timeout=10)

    def _reap(self) -> None:
        for process in self.processes.values():
            process.poll()


@contextmanager
def running(folder: Path, **changes: str) -> Iterator[Stack]:
    """A migrated installation without workers, its environment changed by `changes`; everything it started has ended
    afterwards."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")
    }
    environment |= {
        "RIDGELINE_MODE": "single", "RIDGELINE_DATA_DIR": str(folder / "data"),
        "RIDGELINE_LOCK_DIR": str(folder / "locks"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "MEASURE_SURROUNDINGS": "0",  # these tests are about jobs
    } | changes  # fmt: skip
    with ExitStack() as stack:
        if os.environ.get("DATABASE_URL"):
            environment["DATABASE_URL"] = stack.enter_context(postgres_database())
        if url := os.environ.get("REDIS_URL"):
            environment["REDIS_URL"] = stack.enter_context(_unused_redis(url))
        installation = Stack(folder, environment)
        stack.callback(installation.end)
        installation.manage("migrate", "--verbosity", "0")
        yield installation


@contextmanager
def _unused_redis(url: str) -> Iterator[str]:
    for number in range(15, 0, -1):
        numbered = urlunsplit(urlsplit(url)._replace(path=f"/{number}"))
        with redis.Redis.from_url(numbered) as client:
            if client.dbsize() == 0:
                try:
                    yield numbered
                finally:
                    client.flushdb()
                return
    pytest.skip("no unused database on REDIS_URL")
