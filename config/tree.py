"""Ridgeline as one process tree: web server, two workers and beat, for one data directory.

One tree per data directory: a lock on a file in it is held until the last process has ended. ``serve.json``
beside it says where a running tree answers. The same command lines stand in docker-compose.yml, one a container.
"""

from __future__ import annotations

import errno
import fcntl
import http.client
import ipaddress
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from config.supervisor import Service, Supervisor, stopping_signals

PORTS_TRIED = 20
READY_S = 120.0


class Refused(Exception):
    """The tree cannot be started, for a reason the user can act on."""


class AlreadyServing(Refused):
    """Another tree holds this data directory. ``url`` is None while it is still starting."""

    def __init__(self, data_dir: Path, url: str | None) -> None:
        at = f" at {url}" if url else ""
        super().__init__(
            f"Ridgeline is already running{at} on {data_dir}. Use that one, end it, or set RIDGELINE_DATA_DIR."
        )
        self.url = url


@dataclass(frozen=True, slots=True)
class Tree:
    url: str
    supervisor: Supervisor

    def wait(self) -> None:
        """Keeps the services running until a signal ends it."""
        while True:
            self.supervisor.tick()
            time.sleep(0.2)


def worker_argv(queue: str, *options: str) -> tuple[str, ...]:
    return (
        sys.executable, "-m", "celery", "-A", "config", "worker", "-Q", queue, "-n", f"{queue}@%h",
        "-l", settings.LOG_LEVEL, "--without-gossip", "--without-mingle", *options,
    )  # fmt: skip


def services(listen_fd: int, default_processes: int = 3) -> list[Service]:
    """The four services. The default worker has a process more than plans run at once (PLANS_AT_ONCE). Torch runs in
    fresh children of the device worker's one child, one job each."""
    web = (
        sys.executable, "-m", "gunicorn", "config.wsgi:application", "--bind", f"fd://{listen_fd}",
        "--worker-class", "gthread", "--workers", "1", "--threads", "8", "--timeout", "120",
        "--graceful-timeout", "3", "--no-control-socket",
    )  # fmt: skip
    beat = (sys.executable, "-m", "celery", "-A", "config", "beat", "-l", settings.LOG_LEVEL, "--pidfile=")
    return [
        Service("web", web, pass_fds=(listen_fd,)),
        Service("device", worker_argv("device", "-c", "1", "--max-tasks-per-child=1")),
        Service("default", worker_argv("default", "-c", str(default_processes))),
        Service("beat", beat),
    ]


@contextmanager
def running(
    *, host: str, port: int, loopback_only: bool, folder: Path, data_dir: Path, say: Callable[[str], None],
    prepare: Callable[[], None],
) -> Iterator[Tree]:  # fmt: skip
    """A tree that answers, ended when the block is left. ``prepare`` (migrations) runs under the lock.

    Raises Refused: another tree on the data directory, a host that may not be served, no free port.
    """
    if loopback_only and not is_loopback(host):
        raise Refused(
            f"Single-user mode needs no login, so it serves this machine only: {host} is not a loopback address. "
            "Set RIDGELINE_MODE=multi (README: several people) to serve others."
        )
    with _locked(data_dir) as lock_fd, stopping_signals(), _listening(host, port, say) as listener:
        say("Preparing the database …")
        prepare()
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | dict(os.environ)
        supervisor = Supervisor(
            services(listener.fileno()), environment=environment | {"PYTHONUNBUFFERED": "1"}, folder=folder,
            log_dir=data_dir / "logs", say=say, keep=(lock_fd,),
        )  # fmt: skip
        name = f"[{host}]" if ":" in host else host
        tree = Tree(f"http://{name}:{listener.getsockname()[1]}", supervisor)
        try:
            supervisor.start()
            _wait_until_ready(tree, say)
            _write(data_dir / "serve.json", tree.url)
            yield tree
        finally:
            (data_dir / "serve.json").unlink(missing_ok=True)
            supervisor.stop()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def answers(url: str) -> bool:
    """Whether the web server at ``url`` answers and is well. With several people it may send this plain request
    to https or refuse its host name: an answer all the same."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=3)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _wait_until_ready(tree: Tree, say: Callable[[str], None]) -> None:
    deadline_s = time.monotonic() + READY_S
    while not answers(tree.url):
        tree.supervisor.tick()
        if time.monotonic() > deadline_s:
            raise Refused(f"The web server does not answer. Its log: {tree.supervisor.log_path('web')}")
        time.sleep(0.2)


@contextmanager
def _locked(data_dir: Path) -> Iterator[int]:
    descriptor = os.open(data_dir / "serve.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyServing(data_dir, url_of(data_dir)) from error
        yield descriptor
    finally:
        os.close(descriptor)


def url_of(data_dir: Path) -> str | None:
    """Where the tree on ``data_dir`` said it answers."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads((data_dir / "serve.json").read_text())["url"])
    return None


def _write(path: Path, url: str) -> None:
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    scratch.replace(path)


@contextmanager
def _listening(host: str, port: int, say: Callable[[str], None]) -> Iterator[socket.socket]:
    """A listening socket on ``port`` or, where that is taken, on the next free one. The web server inherits it,
    so nobody can take the port between the look and the start."""
    if not 0 <= port <= 65_535:
        raise Refused(f"A port is a number from 0 to 65535, not {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + PORTS_TRIED, 65_536)):
        try:
            listener = socket.create_server((host, candidate), family=family, backlog=128)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise Refused(f"{host} cannot be served here: {os.strerror(error.errno or 0)}.") from error
            if candidate == port:
                say(
                    f"Port {port} on {host} cannot be used ({os.strerror(error.errno)}); looking for the next free one."
                )
            continue
        with listener:
            yield listener
        return
    raise Refused(
        f"No free port on {host} from {port} to {port + PORTS_TRIED - 1}. Give another with --port."
    )
