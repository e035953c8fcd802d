"""`python -m calibration.experiment.tcp_worker`: the other end of a transfer over TCP between two processes.

Tensors go over torch.distributed's gloo, as engines without a faster connector send KV. A transfer lasts until the
receiver's answer of one byte is back. Rank 0 lives in the process that measures, rank 1 is this one; both on one host
(loopback) unless `--host` says otherwise, and then the times are those of the network between them.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from calibration.engine.parent import end_with
from calibration.experiment.transfer_paths import ONE_HOST, REPEATS, PathTimes

WAIT_S = 120


def measure_tcp(sizes: Sequence[int]) -> PathTimes:
    """Seconds of each size between this process and one that it starts. Raises RuntimeError, OSError."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "calibration.experiment.tcp_worker", "--port", str(port)]
    command += ["--sizes", ",".join(map(str, sizes)), "--parent", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:  # noqa: S603
        try:
            _join("127.0.0.1", port, rank=0)
            seconds = tuple(_send(size) for size in sizes)
            dist.destroy_process_group()
            other.wait(timeout=WAIT_S)
        finally:
            if other.poll() is None:
                other.kill()
    return PathTimes(f"TCP between two processes, gloo over loopback ({ONE_HOST})", tuple(sizes), seconds)


def _join(host: str, port: int, rank: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if host == "127.0.0.1" else "")
    address = f"tcp://{host}:{port}"
    wait = datetime.timedelta(seconds=WAIT_S)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=wait)


def _send(size: int) -> tuple[float, ...]:
    buffers = [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(2)]
    answer = torch.zeros(1, dtype=torch.uint8)
    found = []
    for repeat in range(REPEATS + 1):
        start = time.perf_counter()
        dist.send(buffers[repeat % 2], 1)
        dist.recv(answer, 1)
        found.append(time.perf_counter() - start)
    return tuple(found[1:])


def _receive(size: int) -> None:
    buffer, answer = torch.empty(size, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    for _ in range(REPEATS + 1):
        dist.recv(buffer, 0)
        dist.send(answer, 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The receiving end of transfers over TCP")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    parser.add_argument("--parent", type=int, help="process to end with")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        end_with(options.parent)
    _join(options.host, options.port, rank=1)
    for size in options.sizes.split(","):
        _receive(int(size))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
