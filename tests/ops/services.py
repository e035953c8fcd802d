"""Real servers for tests: a temporary Postgres database and a Redis of our own. Skips by name where absent."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

#: How long something that must happen is waited for, on a machine that does other things as well. It bounds how long a
#: failure takes to show, and proves nothing: what must be quick is compared with what came before and after it.
PATIENCE_S = 180.0
# Where Debian's packages and most CI images have one; DATABASE_URL comes first.
POSTGRES_GUESSES = ("postgres://postgres@127.0.0.1:5432/postgres", "postgres:///postgres")


def wait_for(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "it",
    *,
    timeout_s: float = PATIENCE_S,
    every_s: float = 0.05,
) -> object:
    """The first true value of ``condition``; ``what``, asked only on failure, says what was missed."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"waited {timeout_s:.0f} s in vain for {what if isinstance(what, str) else what()}")
        time.sleep(every_s)
    return value


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def postgres_server() -> str:
    """URL of a server where databases may be created."""
    for url in filter(None, (os.environ.get("DATABASE_URL"), *POSTGRES_GUESSES)):
        try:
            psycopg.connect(url, connect_timeout=3).close()
        except psycopg.Error:
            continue
        return url
    pytest.skip("no Postgres server answers (DATABASE_URL or 127.0.0.1:5432)")


@contextmanager
def postgres_database() -> Iterator[str]:
    """URL of an empty database, dropped afterwards with whoever is still connected to it."""
    server, name = postgres_server(), f"ridgeline_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def redis_server(password: str = "") -> Iterator[str]:
    """URL of a Redis of our own on a free port, which keeps nothing on disk."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    port = free_port()
    config = f'bind 127.0.0.1\nport {port}\nsave ""\nappendonly no\n'
    config += f"requirepass {password}\n" if password else ""
    process = subprocess.Popen(
        ["redis-server", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.write(config.encode())
    process.stdin.close()
    try:
        wait_for(lambda: listens(port), "redis-server")
        yield f"redis://{':' + password + '@' if password else ''}127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
