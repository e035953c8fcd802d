"""docker-compose.yml: what it promises, read by the installed docker-compose; and every service's own command run
as a process with its own environment, against a real Postgres and a Redis with a password."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from config import tree
from tests.ops.services import PATIENCE_S, free_port, listens, postgres_database, wait_for

ROOT = Path(__file__).resolve().parents[2]
SECRETS = ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD")
ENVIRONMENT = {name: secrets.token_hex(32) for name in SECRETS} | {"ALLOWED_HOSTS": "localhost"}
CLEAN = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")}


def compose(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    return subprocess.run(
        ["docker-compose", "--env-file", ".env.example", *words],
        cwd=ROOT, env=CLEAN | environment, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    result = compose("config", environment=ENVIRONMENT)
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr.lower()
    described: dict[str, Any] = yaml.safe_load(result.stdout)["services"]
    return described


def test_the_services_of_a_full_installation_are_there(services):
    assert set(services) == {"migrate", "web", "default", "device", "beat", "redis", "postgres"}
    assert all("healthcheck" in services[name] for name in set(services) - {"migrate"})


#: What the file decides itself, or what a container has no use for.
OF_THE_CONTAINERS = {
    "RIDGELINE_MODE", "DATABASE_URL", "REDIS_URL", "RIDGELINE_DATA_DIR", "NUMBA_CACHE_DIR", "RIDGELINE_LOCK_DIR",
    "STATIC_ROOT", "DEBUG",
}  # fmt: skip
#: Values other than the defaults, where a number or a name is read.
OTHERS = {
    "LOG_LEVEL": "DEBUG", "TIME_ZONE": "Europe/Berlin", "TLS": "false", "EMAIL_PORT": "2525", "PLAN_HELPERS": "3",
}  # fmt: skip


def documented() -> set[str]:
    """The variables of the README's table."""
    rows = [
        line.split("|")[1] for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")
    ]
    return {name for row in rows for name in re.findall(r"`([A-Z][A-Z_]+)`", row)}


def test_whatever_the_readme_lets_a_user_set_reaches_every_container():
    names = documented() - OF_THE_CONTAINERS
    assert {"TIME_ZONE", "LOG_LEVEL", "MEASURE_SURROUNDINGS", "RATE_LIMITS"} <= names
    chosen = {name: OTHERS.get(name, "1") for name in names} | ENVIRONMENT
    result = compose("config", environment=chosen)
    assert result.returncode == 0, result.stderr
    described = yaml.safe_load(result.stdout)["services"]
    for service in ("migrate", "web", "default", "device", "beat"):
        told = {name: str(value) for name, value in described[service]["environment"].items()}
        assert {name: told.get(name) for name in names} == {name: chosen[name] for name in names}, service
    for service in ("default", "device", "beat"):
        words = described[service]["command"]
        assert words[words.index("-l") + 1] == "DEBUG", "or a worker would log as it likes"


def test_what_is_not_set_is_the_settings_own_default(services):
    """Compose hands on an empty word for what nobody set: the settings load with it, as without it."""
    told = {name: str(value) for name, value in services["web"]["environment"].items()}
    unset = {name for name in documented() - OF_THE_CONTAINERS if name not in ENVIRONMENT}
    code = """
import json
from config import settings
print(json.dumps([settings.TIME_ZONE, settings.LOG_LEVEL, settings.MEASURE_SURROUNDINGS, settings.RATE_LIMITS_ENABLED,
    settings.SECURE_SSL_REDIRECT, settings.SECURE_HSTS_SECONDS, settings.MAX_UPLOAD_BYTES, settings.EMAIL_PORT,
    settings.CALIBRATION_FRESH_DAYS, settings.PLAN_HELPERS, settings.PLAN_THREADS, settings.SWEEP_EVERY_S,
    settings.DEFAULT_FROM_EMAIL]))
"""

    def loaded(environment: dict[str, str], folder: str) -> str:
        own = {"PATH": os.environ["PATH"], "RIDGELINE_DATA_DIR": folder}
        ended = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment | own,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    with tempfile.TemporaryDirectory() as folder:
        without = {name: value for name, value in told.items() if name not in unset}
        assert loaded(told, folder) == loaded(without, folder)


def test_the_example_names_whatever_compose_passes_on():
    asked = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    offered = set(re.findall(r"^(?:# )?([A-Z][A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert offered == asked and len(asked) > 20


@pytest.mark.parametrize("name", [*SECRETS, "ALLOWED_HOSTS"])
def test_nothing_that_must_be_chosen_has_a_default(name):
    result = compose("config", environment={key: value for key, value in ENVIRONMENT.items() if key != name})
    assert result.returncode != 0
    assert f"set {name} in .env" in result.stderr
    assert f"\n{name}=\n" in (ROOT / ".env.example").read_text()


def test_only_the_web_server_is_published_and_to_this_machine_only(services):
    published = {name: service["ports"] for name, service in services.items() if service.get("ports")}
    assert published == {"web": ["127.0.0.1:8000:8000/tcp"]}
    assert (
        "outside" not in services["redis"]["networks"] and "outside" not in services["postgres"]["networks"]
    )


def test_the_device_worker_reserves_a_gpu_and_runs_one_job_at_a_time(services):
    [gpu] = services["device"]["deploy"]["resources"]["reservations"]["devices"]
    assert gpu["capabilities"] == ["gpu"]
    assert services["device"]["build"]["target"] == "engine"
    assert services["device"]["command"][-3:] == ["-c", "1", "--max-tasks-per-child=1"]


def test_workers_and_beat_are_those_of_the_process_tree(services):
    for service in tree.services(listen_fd=9):
        if service.name != "web":
            assert services[service.name]["command"] == ["python", *service.argv[1:]]


def test_the_dockerfile_copies_what_exists_and_ends_as_an_ordinary_user():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, f"{source} is kept out by .dockerignore"
    stages = "\n".join(lines).split("\nFROM ")[1:]
    assert len(stages) == 2
    for stage in stages:
        assert [line for line in stage.splitlines() if line.startswith("USER ")][-1] == "USER ridgeline"


def run(
    service: dict[str, Any], words: list[str], environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """A container's command as a process: its own environment and no other, hosts and folders replaced."""
    argv = [sys.executable if words[0] == "python" else words[0], *words[1:]]
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip


@contextmanager
def ended(processes: dict[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for number, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            for process in processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=wait_s)


@pytest.mark.worker
def test_every_service_runs_as_written(services, tmp_path):
    """Migrations, web server, both workers and beat, healthy by their own health checks; the sweep goes from beat
    over Redis to the worker, and Redis answers nobody without the password."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    web_port, redis_port = free_port(), free_port()
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with postgres_database() as database_url, ended(processes):

        def environment(name: str) -> dict[str, str]:
            inside = {key: str(value) for key, value in services[name]["environment"].items()}
            if "DATABASE_URL" in inside:
                assert inside["DATABASE_URL"].endswith("@postgres:5432/ridgeline")
                inside["DATABASE_URL"] = database_url
                inside["REDIS_URL"] = inside["REDIS_URL"].replace("@redis:6379", f"@127.0.0.1:{redis_port}")
            return inside | {
                "PATH": os.environ["PATH"], "HOME": str(tmp_path), "RIDGELINE_DATA_DIR": str(tmp_path / "data"),
                "STATIC_ROOT": str(tmp_path / "static"), "RIDGELINE_LOCK_DIR": str(tmp_path / "locks"),
                "HEALTH_URL": f"http://127.0.0.1:{web_port}/healthz",
            }  # fmt: skip

        def start(name: str) -> None:
            words = [str(word).replace("$$", "$") for word in services[name]["command"]]
            words = [word.replace("0.0.0.0:8000", f"127.0.0.1:{web_port}") for word in words]
            words = [word.replace("dir /data", rf"dir {tmp_path}\nport {redis_port}") for word in words]
            processes[name] = run(services[name], words, environment(name), tmp_path / f"{name}.log")

        def log(name: str) -> str:
            return (tmp_path / f"{name}.log").read_text(errors="replace")

        def healthy(name: str) -> bool:
            words = services[name]["healthcheck"]["test"]
            assert words[:2] == ["CMD", "python"]
            assert processes[name].poll() is None, f"{name} ended:\n{log(name)[-2000:]}"
            check = subprocess.run(
                [sys.executable, *words[2:]],
                cwd=ROOT,
                env=environment(name),
                capture_output=True,
                timeout=PATIENCE_S,
            )
            return check.returncode == 0

        start("redis")
        wait_for(lambda: listens(redis_port), "redis")
        with pytest.raises(redis.AuthenticationError), redis.Redis(port=redis_port) as nobody:
            nobody.ping()
        start("migrate")
        assert processes["migrate"].wait(timeout=PATIENCE_S) == 0, log("migrate")
        for name in ("web", "default", "device", "beat"):
            start(name)
        for name in ("web", "default", "device", "beat"):
            wait_for(lambda name=name: healthy(name), lambda name=name: f"{name}:\n{log(name)[-2000:]}")
        wait_for(
            lambda: "sweep_plans" in log("default") and "succeeded" in log("default"),
            lambda: log("beat")[-2000:],
        )
        wait_for(
            lambda: "announce_devices" in log("device") and "succeeded" in log("device"),
            lambda: log("device")[-2000:],
        )
