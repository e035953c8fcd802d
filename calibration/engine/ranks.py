"""How the processes of one model find each other: torch.distributed over NCCL on GPUs, over gloo on a CPU."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist

from calibration.architecture import Architecture
from calibration.engine.sharding import check_shards
from calibration.engine.shards import Shard

PATIENCE = datetime.timedelta(seconds=300)


def join(architecture: Architecture, rank: int, ranks: int, device: str, meeting: str) -> Shard:
    """Meets the other ranks at the file `meeting`; this rank's share. One rank meets nobody. Raises CannotShard."""
    check_shards(architecture, ranks)
    if ranks == 1:
        return Shard()
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(torch.device(device))
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=PATIENCE,
    )
    return Shard(rank, ranks)


def agreed_dtype(dtype: str, device: str, ranks: int) -> str:
    """The type that an engine is started with: on a CPU ranks would each measure "auto" for themselves, and they must
    agree."""
    return "float32" if ranks > 1 and dtype == "auto" and device.startswith("cpu") else dtype


def leave() -> None:
    """Ends what `join` began, while the interpreter still runs: a rank that exits with its group's threads alive
    may be ended by the C++ runtime ("terminate called without an active exception")."""
    if dist.is_initialized():
        dist.destroy_process_group()


def facts(shard: Shard, device: torch.device) -> dict[str, object]:
    """What the record says of the ranks."""
    if shard.size == 1:
        return {"tensor_parallel": 1}
    if device.type == "cuda":
        return {"tensor_parallel": shard.size, "ranks": f"NCCL, {shard.size} GPUs of one host"}
    words = (
        f"gloo, {shard.size} processes on one CPU: for testing, waiting for each other is not in the times"
    )
    return {"tensor_parallel": shard.size, "ranks": words, "representative": False}
