"""The engine as a process of its own: `python -m calibration.engine.process --socket-fd N --parent PID`.

Started by client.py, which holds the other end of the socket. Requests and answers are JSON (wire.py):
  {"op": "start", spec...}  -> {"ok": true, "environment": {...}}
  {"op": "measure", "decode_contexts": [...], "chunks": [[query, cached, sampled]...], "seed": n} -> timing
  {"op": "stop"}            -> the process ends
An answer {"ok": false, "error": "..."} says what went wrong. The process also ends when the socket closes and
when its parent dies, even in the middle of a step: a killed worker must not leave a busy core behind.
A plain subprocess, because a prefork worker's child may not have multiprocessing children and a child forked
after a torch operation in its parent hangs.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from calibration.architecture import Architecture
from calibration.engine import wire
from calibration.engine.runner import EngineSpec, TorchRunner

PARENT_CHECK_S = 1.0


def serve(connection: socket.socket) -> None:
    """Answers requests until told to stop or the other side goes away."""
    runner: TorchRunner | None = None
    while True:
        try:
            request = wire.receive(connection)
            if request.get("op") == "stop":
                return
            try:
                runner, answer = _answer(runner, request)
            except Exception as error:  # every failure becomes an answer: the client decides
                answer = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
            wire.send(connection, answer)
        except wire.WireClosed:
            return


def _answer(
    runner: TorchRunner | None, request: dict[str, Any]
) -> tuple[TorchRunner | None, dict[str, object]]:
    operation = request.get("op")
    if operation == "start":
        runner = TorchRunner(_spec(request))
        return runner, {"ok": True, "environment": runner.environment()}
    if runner is None:
        raise ValueError("the engine has not been started")
    if operation == "measure":
        chunks = [(int(query), int(cached), bool(sampled)) for query, cached, sampled in request["chunks"]]
        timing = runner.measure([int(c) for c in request["decode_contexts"]], chunks, int(request["seed"]))
        answer: dict[str, object] = {"ok": True, "seconds": timing.seconds}
        answer |= {"host_gap_s": timing.host_gap_s, "contended": timing.contended}
        return runner, answer
    if operation == "usage":
        return runner, {"ok": True, **runner.usage()}
    raise ValueError(f"unknown operation {operation!r}")


def _spec(request: dict[str, Any]) -> EngineSpec:
    return EngineSpec(
        architecture=Architecture.from_dict(request["architecture"]),
        device=str(request["device"]),
        dtype=str(request["dtype"]),
        kv_tokens=int(request["kv_tokens"]),
        max_positions=int(request["max_positions"]),
        seed=int(request["seed"]),
    )


def _leave_with(parent: int) -> None:
    """Ends this process once its parent is another one than who started it."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ridgeline's engine process (started by its client)")
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; our parent decides
    threading.Thread(target=_leave_with, args=(options.parent,), daemon=True).start()
    with socket.socket(fileno=options.socket_fd) as connection:
        serve(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
