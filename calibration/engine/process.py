"""The engine as a process of its own: `python -m calibration.engine.process --socket-fd N --parent PID`.

Started by client.py, which holds the other end of the socket. Requests and answers are JSON (wire.py):
  {"op": "start", spec...}  -> {"ok": true, "environment": {...}}
  {"op": "measure", "decode_contexts": [...], "chunks": [[query, cached, sampled]...], "seed": n} -> timing
  {"op": "ceilings"}        -> the device's copy and matmul rates, and the environment as it is now
  {"op": "breakdown", ... as measure} -> shares of one profiled step by kind of work
  {"op": "serve"|"attach"|"export"|"import"|"logits", ...} -> over real sequences (serving.py)
  {"op": "stop"}            -> the process ends
An answer {"ok": false, "error": "..."} says what went wrong. The process also ends when the socket closes and
when its parent dies, even in the middle of a step: a killed worker must not leave a busy core behind.
A plain subprocess, because a prefork worker's child may not have multiprocessing children and a child forked
after a torch operation in its parent hangs.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import socket
import sys
from typing import Any

from calibration.architecture import Architecture
from calibration.engine import wire
from calibration.engine.interface import ChunkTuple
from calibration.engine.parent import end_with
from calibration.engine.ranks import agreed_dtype, join, leave
from calibration.engine.runner import EngineSpec, TorchRunner
from calibration.engine.serving import OPERATIONS as SERVING
from calibration.engine.serving import Serving
from calibration.kept_memory import keep_freed

#: For tests of the drift check only: a device that slowed down by this factor. The record says so.
STRETCH = "RIDGELINE_TEST_STRETCH_STEPS"
#: For tests of what follows from step times only: steps run, and are said to have taken what a formula gives with 1 %
#: of noise, so that no busy machine decides what is published or has drifted. The record says so.
FORMULA = "RIDGELINE_TEST_STEPS_BY_FORMULA"


def serve(connection: socket.socket) -> None:
    """Answers requests until told to stop or the other side goes away."""
    runner: TorchRunner | None = None
    serving: Serving | None = None
    while True:
        try:
            request = wire.receive(connection)
            if request.get("op") == "stop":
                return
            try:
                if request.get("op") in SERVING:
                    serving = serving or Serving(_started(runner))
                    answer: dict[str, object] = {"ok": True}
                    answer |= serving.answer(str(request["op"]), request)
                else:
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
        runner = TorchRunner(_spec(request, Architecture.from_dict(request["architecture"])))
        return runner, {"ok": True, "environment": _environment(runner)}
    runner = _started(runner)
    if operation == "measure":
        timing = runner.measure(*_shape(request))
        seconds = _by_formula(request) if os.environ.get(FORMULA) else timing.seconds
        answer: dict[str, object] = {"ok": True, "seconds": seconds * _stretch()}
        answer |= {"host_gap_s": timing.host_gap_s, "contended": timing.contended}
        return runner, answer
    if operation == "ceilings":
        return runner, {"ok": True, "ceilings": runner.ceilings(), "environment": _environment(runner)}
    if operation == "breakdown":
        shares = runner.breakdown(*_shape(request))
        return runner, {"ok": True, "shares": shares}
    if operation == "usage":
        return runner, {"ok": True, **runner.usage()}
    raise ValueError(f"unknown operation {operation!r}")


def _started(runner: TorchRunner | None) -> TorchRunner:
    if runner is None:
        raise ValueError("the engine has not been started")
    return runner


def _stretch() -> float:
    return float(os.environ.get(STRETCH) or 1.0)


def _by_formula(request: dict[str, Any]) -> float:
    contexts, chunks, _ = _shape(request)
    tokens = len(contexts) + sum(query for query, _, _ in chunks)
    return (4e-3 + 3e-5 * tokens + 1e-4 * len(contexts)) * math.exp(random.gauss(0.0, 0.01))


def _environment(runner: TorchRunner) -> dict[str, object]:
    stretch = _stretch()
    hooks: dict[str, object] = {"steps_stretched_by": stretch} if stretch != 1.0 else {}
    hooks |= {"steps_timed_by": "a formula"} if os.environ.get(FORMULA) else {}
    return runner.environment() | hooks


def _shape(request: dict[str, Any]) -> tuple[list[int], list[ChunkTuple], int]:
    chunks = [(int(query), int(cached), bool(sampled)) for query, cached, sampled in request["chunks"]]
    return [int(context) for context in request["decode_contexts"]], chunks, int(request["seed"])


def _spec(request: dict[str, Any], architecture: Architecture) -> EngineSpec:
    rank, ranks = int(request.get("rank", 0)), int(request.get("ranks", 1))
    return EngineSpec(
        architecture=architecture,
        shard=join(architecture, rank, ranks, str(request["device"]), str(request.get("meeting", ""))),
        device=str(request["device"]),
        dtype=agreed_dtype(str(request["dtype"]), str(request["device"]), ranks),
        kv_tokens=int(request["kv_tokens"]),
        max_positions=int(request["max_positions"]),
        seed=int(request["seed"]),
        mixed_mode=str(request.get("mixed_mode", "unified")),
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ridgeline's engine process (started by its client)")
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; our parent decides
    end_with(options.parent)
    keep_freed()
    with socket.socket(fileno=options.socket_fd) as connection:
        serve(connection)
    leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
