"""The engine in its own process: it answers, it fails with words, and it never outlives anybody."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from calibration.architecture import Architecture
from calibration.engine import wire
from calibration.engine.client import REPOSITORY, EngineClient, EngineError
from calibration.engine.device_lock import DeviceBusy, device_lock
from calibration.engine.process import FORMULA, STRETCH
from tests.ops.services import PATIENCE_S

TINY = Architecture(
    name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
    intermediate_size=96, vocab_size=128, tie_word_embeddings=True,
)  # fmt: skip


def start(**changes):
    return EngineClient(TINY, **({"dtype": "float32", "kv_tokens": 4_000, "max_positions": 300} | changes))


def gone(pid):
    for _ in range(int(PATIENCE_S / 0.05)):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_measures_and_ends():
    with start() as engine:
        assert engine.environment()["parameters"] == TINY.parameters
        assert engine.measure([10, 20], [(5, 0, True)], seed=1).seconds > 0
        assert engine.usage()["cpu_s"] > 0
        with pytest.raises(EngineError, match="KV blocks"):
            engine.measure([299] * 20, [], seed=1)
        assert engine.measure([10], [], seed=1).seconds > 0  # a refused step does not end it
        pid = engine.pid
    assert gone(pid)
    engine.close()


@pytest.mark.parametrize("stretch", [1.0, 1.12])
def test_the_hooks_of_tests_decide_what_a_step_took_and_the_record_says_so(monkeypatch, stretch):
    with start() as engine:
        assert not {"steps_timed_by", "steps_stretched_by"} & engine.environment().keys()
    monkeypatch.setenv(FORMULA, "1")
    monkeypatch.setenv(STRETCH, str(stretch))
    with start() as engine:
        seconds = [engine.measure([10, 20], [(5, 0, True)], seed=i).seconds for i in range(20)]
        assert engine.environment()["steps_timed_by"] == "a formula"
        assert engine.environment().get("steps_stretched_by", 1.0) == stretch
    assert sum(seconds) / 20 == pytest.approx((4e-3 + 7 * 3e-5 + 2 * 1e-4) * stretch, rel=0.02)


def test_a_start_that_fails_says_why_and_leaves_nothing():
    with pytest.raises(EngineError, match="at least 16 tokens"):
        start(kv_tokens=3)
    with pytest.raises(EngineError, match="dtype must be"):
        start(dtype="int4")


def test_a_process_that_cannot_even_import_shows_its_last_words(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch on this machine')")
    monkeypatch.setattr(
        "calibration.engine.client._python_path", lambda: f"{tmp_path}{os.pathsep}{REPOSITORY}"
    )
    with pytest.raises(EngineError, match="no torch on this machine"):
        start()


def test_a_killed_engine_is_an_error_not_a_hang():
    with start() as engine:
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="signal 9"):
            engine.measure([10], [], seed=0)


def test_a_step_beyond_its_time_is_an_error_and_the_engine_is_killed():
    with start() as engine:
        pid = engine.pid
        os.kill(pid, signal.SIGSTOP)
        engine._connection.settimeout(0.2)
        with pytest.raises(EngineError, match="in time"):
            engine.measure([10], [], seed=0)
        assert gone(pid)


def test_the_engine_dies_with_its_parent_even_while_the_socket_is_held():
    """A parent killed by force: no exit handlers, and a sibling still holds the parent's end of the socket."""
    script = textwrap.dedent(
        """
        import os, time
        from tests_tiny import start
        engine = start()
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        print(engine.pid, flush=True)
        time.sleep(60)
        """
    ).replace("from tests_tiny import start", _START_SOURCE)
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
        start_new_session=True,
    )
    try:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
        assert gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


_START_SOURCE = textwrap.dedent(
    """
    from calibration.architecture import Architecture
    from calibration.engine.client import EngineClient
    def start():
        tiny = Architecture(name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2,
                            head_dim=16, intermediate_size=96, vocab_size=128, tie_word_embeddings=True)
        return EngineClient(tiny, dtype="float32", kv_tokens=4_000, max_positions=300)
    """
)


def test_one_job_per_device(tmp_path):
    with device_lock("cpu", folder=tmp_path):
        with pytest.raises(DeviceBusy, match="cpu"), device_lock("cpu", folder=tmp_path):
            pass
        with device_lock("cuda:0", folder=tmp_path):
            pass
    with device_lock("cpu", folder=tmp_path):
        pass


def test_the_device_stays_taken_until_the_engine_is_gone(tmp_path):
    with device_lock("cpu", folder=tmp_path) as descriptor:
        engine = start(lock_descriptor=descriptor)
    try:
        with pytest.raises(DeviceBusy), device_lock("cpu", folder=tmp_path):
            pass
    finally:
        engine.close()
    with device_lock("cpu", folder=tmp_path):
        pass


def test_waiting_for_a_device_ends_when_it_is_free_or_told_to_stop(tmp_path):
    released = threading.Event()
    with device_lock("cpu", folder=tmp_path) as descriptor:
        copy = os.dup(descriptor)

    def release():
        released.wait(10)
        os.close(copy)

    thread = threading.Thread(target=release)
    thread.start()
    asked = iter([False, True])
    with (
        pytest.raises(DeviceBusy),
        device_lock("cpu", wait_s=60, should_stop=lambda: next(asked), folder=tmp_path),
    ):
        pass
    released.set()
    with device_lock("cpu", wait_s=60, folder=tmp_path):
        thread.join()


def test_lock_names_stay_in_their_folder(tmp_path):
    with device_lock("../../etc/passwd", folder=tmp_path):
        assert [path.parent for path in tmp_path.iterdir()] == [tmp_path]


def test_wire_refuses_what_is_not_a_message():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, {"x": 0.1 + 0.2, "text": "µ"})
        assert wire.receive(theirs) == {"x": 0.1 + 0.2, "text": "µ"}
        with pytest.raises(ValueError, match="JSON compliant"):
            wire.send(ours, {"x": float("nan")})
        for content in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x03nop"):
            ours.sendall(content)
            with pytest.raises(wire.WireClosed):
                wire.receive(theirs)
        ours.sendall(b"\x00\x00")
        ours.close()
        with pytest.raises(wire.WireClosed):
            wire.receive(theirs)
