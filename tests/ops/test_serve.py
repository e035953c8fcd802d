"""``manage.py serve`` as a process: one tree a data directory, loopback only, and nothing left when it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config import tree, warden
from tests.ops.services import PATIENCE_S, free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.worker


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")}
    locks = str(data_dir.parent / "locks")
    return clean | {"RIDGELINE_DATA_DIR": str(data_dir), "RIDGELINE_LOCK_DIR": locks} | more


def refused(data_dir: Path, *words: str, **more: str) -> str:
    """What a ``serve`` that will not start says; its exit status is 2."""
    result = subprocess.run(
        [sys.executable, "manage.py", "serve", *words], cwd=ROOT, env=environment(data_dir, **more),
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert result.returncode == 2, result.stdout + result.stderr
    return result.stderr


@contextmanager
def serving(data_dir: Path, port: int, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running ``serve`` and its URL."""
    out = data_dir.parent / "serve.out"
    with out.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", "manage.py", "serve", "--port", str(port)], cwd=ROOT, text=True,
            env=environment(data_dir, **more), stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        found = wait_for(
            lambda: re.search(r"Ridgeline serves (http://\S+)", out.read_text()) or process.poll() is not None,
            "serve",
        )  # fmt: skip
        assert isinstance(found, re.Match), out.read_text()
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        wait_for(lambda: not of(data_dir), "the tree to end")


def of(data_dir: Path) -> list[int]:
    """The living processes of the trees on ``data_dir``."""
    wanted = f"RIDGELINE_DATA_DIR={data_dir}\0".encode()
    found = []
    for entry in warden.PROC.glob("[0-9]*/environ"):
        try:
            environ = entry.read_bytes()
        except OSError:
            continue
        if wanted in environ:
            found.append(int(entry.parent.name))
    return found


def test_a_tree_from_start_to_end(tmp_path):
    """Port taken, second tree, dead worker, Ctrl-C: in one run, because each start takes seconds."""
    data_dir, port = tmp_path / "data", free_port()
    with socket.create_server(("127.0.0.1", port)), serving(data_dir, port) as (process, url):
        assert "cannot be used" in (tmp_path / "serve.out").read_text()
        assert int(url.rsplit(":", 1)[1]) > port, "the next free port"
        with urllib.request.urlopen(f"{url}/healthz", timeout=10) as response:
            assert response.status == 200
        assert oct((data_dir / "queue").stat().st_mode)[-3:] == "700"

        second = refused(data_dir)
        assert "already running" in second and url in second

        log = data_dir / "logs" / "default.log"
        wait_for(lambda: log.exists() and "ready." in log.read_text(), "the default worker")
        [worker, *_] = [
            pid for pid in of(data_dir)
            if b"default@%h" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        leaders = [pid for pid in of(data_dir) if os.getpgid(pid) == pid]
        assert len(leaders) >= 5, "four services and the warden have sessions of their own"
        os.kill(os.getpgid(worker), signal.SIGKILL)
        wait_for(lambda: log.read_text().count("ready.") == 2, "the default worker to come back")

        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 0
        assert of(data_dir) == []
    assert tree.url_of(data_dir) is None


def test_a_killed_tree_leaves_nothing_and_its_directory_can_be_served_again(tmp_path):
    data_dir = tmp_path / "data"
    with serving(data_dir, free_port()) as (process, url):
        process.kill()
        process.wait()
        started_s = time.monotonic()
        wait_for(lambda: not of(data_dir), "the warden to end the tree")
        assert time.monotonic() - started_s < 20
        assert not tree.answers(url)
    several_people = {
        "RIDGELINE_MODE": "multi", "SECRET_KEY": "abcdefgh" * 8, "ALLOWED_HOSTS": "ridgeline.example",
        "STATIC_ROOT": str(tmp_path / "static"),
    }  # fmt: skip
    with serving(data_dir, free_port(), **several_people) as (_, url):
        assert tree.answers(url)
        out = tmp_path / "serve.out"
        wait_for(lambda: "TLS=false" in out.read_text(), "what TLS needs")
        assert f"a proxy with a certificate before {url}" in out.read_text()
        assert "BEHIND_PROXY=true" in out.read_text()
        assert (tmp_path / "static" / "app.css").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_single_user_mode_serves_loopback_only(tmp_path, host):
    assert "not a loopback address" in refused(tmp_path / "data", "--host", host)


def test_a_port_that_is_none_is_refused(tmp_path):
    assert "from 0 to 65535" in refused(tmp_path / "data", "--port", "70000")
