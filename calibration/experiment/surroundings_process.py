"""`python -m calibration.experiment.surroundings_process PARENT`: what is around the steps, measured in a process of
its own that ends with its parent.

Reads one JSON object from standard input and writes one on the last line of standard output (surroundings.py has
both). First the memory of the largest steps of each token budget, budgets growing, so that a peak is that budget's;
then the transfers. Peaks are the process's resident set on a CPU and the allocator's on a GPU. Of a model that ranks
share there is such a process for each: they take the same steps, move their shares at once, and each says what it saw
of itself. A failure ends the process at once, however its ranks wait for each other; its last words say why.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from calibration.architecture import Architecture
from calibration.engine.parent import end_with
from calibration.engine.ranks import agreed_dtype, join, leave
from calibration.engine.runner import EngineSpec, TorchRunner
from calibration.experiment.envelope import Envelope
from calibration.experiment.points import Region, warm_up
from calibration.experiment.running import run_step
from calibration.experiment.tcp_worker import measure_tcp
from calibration.experiment.together import Together
from calibration.experiment.transfer_paths import measure_paths

_CONNECTORS = {"nixl": "NIXL", "ucp": "UCX"}


def working_bytes(
    runner: TorchRunner, envelope: Envelope, kv_tokens: int, budgets: list[int]
) -> dict[int, int]:
    """Peak memory of the largest steps of each budget, beyond what the engine takes when it does nothing."""
    before = _resident(runner)
    found = {}
    for budget in sorted(budgets):
        rows = min(envelope.max_batch, budget)
        region = Region(Envelope(rows, envelope.max_context_tokens, budget), kv_tokens)
        _forget_peak(runner)
        for shape in warm_up(region):
            run_step(runner, shape, 0)
        found[budget] = max(0, _peak(runner) - before)
    return found


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


def _resident(runner: TorchRunner) -> int:
    if runner.device.type == "cuda":
        return int(torch.cuda.memory_allocated(runner.device))
    return _status("VmRSS")


def _forget_peak(runner: TorchRunner) -> None:
    if runner.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(runner.device)


def _peak(runner: TorchRunner) -> int:
    if runner.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(runner.device))
    return _status("VmHWM")


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """What this process, a rank or the whole model, found; bytes are its own."""
    architecture = Architecture.from_dict(request["architecture"])
    envelope = Envelope.from_dict(request["envelope"])
    device, ranks = str(request["device"]), int(request["ranks"])
    shard = join(architecture, int(request["rank"]), ranks, device, str(request["meeting"]))
    together = Together(ranks)
    dtype = agreed_dtype(str(request["dtype"]), device, ranks)
    spec = EngineSpec(architecture, device, dtype, request["kv_tokens"], envelope.max_context_tokens + 1,
                      request["seed"], shard=shard)  # fmt: skip
    runner = TorchRunner(spec)
    token_bytes = architecture.kv_bytes_per_token(torch.finfo(runner.dtype).bits // 8, ranks) // ranks
    answer: dict[str, Any] = {"kv_bytes_per_token": token_bytes, "paths": [], "remarks": []}
    answer["working_bytes"] = working_bytes(runner, envelope, request["kv_tokens"], request["budgets"])
    if runner.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(runner.device)
        pool = request["kv_tokens"] * token_bytes
        held = int(torch.cuda.memory_allocated(runner.device))
        outside = total - free - int(torch.cuda.memory_reserved(runner.device))
        answer |= {"total_bytes": total, "other_bytes": held - pool + max(0, outside)}
    sizes = [tokens * token_bytes for tokens in request["tokens"]]
    paths = measure_paths(runner, sizes, token_bytes, together)
    if ranks > 1:
        answer["remarks"] += _refused(ranks, gpu=runner.device.type == "cuda")
    else:
        try:
            paths.append(measure_tcp(sizes))
        except (RuntimeError, OSError) as error:
            answer["remarks"].append(f"TCP between two processes was not measured: {str(error)[:200]}")
    for module, name in _CONNECTORS.items():
        if find_spec(module) is None:
            answer["remarks"].append(f"{name} is not installed: not measured")
        else:
            answer["remarks"].append(
                f"{name} is installed, which is all that was looked at: no transfer over it was measured"
            )
    answer["paths"] = [[p.label, list(p.size_bytes), [list(s) for s in p.seconds]] for p in paths]
    answer["cpu_s"] = time.process_time()
    return answer


def _refused(ranks: int, *, gpu: bool) -> list[str]:
    """What is measured for one process and not for ranks, by name."""
    found = [
        f"TCP between two processes was not measured: it is measured for one sender, and {ranks} ranks would each "
        "send over a connection of their own"
    ]
    if gpu:
        found.append(
            f"device to device was not measured: {ranks} ranks would need as many GPUs more, which this calibration "
            "does not hold"
        )
    return found


def main(parent: int) -> None:
    end_with(parent)
    try:
        sys.stdout.write(json.dumps(measured(json.load(sys.stdin))) + "\n")
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]))
