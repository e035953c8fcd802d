"""How long KV caches of real sizes take from one place to another, path by path, with buffers that no cache holds.

A path moves the K and V of one sequence: one buffer (contiguous), or the pages of a pool gathered first, as an engine
that hands a sequence over must do. On a GPU: to pinned host memory, from it, gathered, each idle and while decode
steps run, and to a second GPU where there is one. On a CPU: within main memory, and gathered. Between two processes
of this host over TCP (tcp_worker). Every path is named for what it was: two ends on one host share its memory and its
kernel, so they are a "software path, one host" and say nothing of a network card. The ranks of a split model each
move their own share, beginning together (together.py).
Cold: each repeat takes the next of several buffers that together are larger than the caches. Clock: wall time with the
device synchronised, because a transfer waits for others. Units: bytes, seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from calibration.engine.runner import TorchRunner
from calibration.experiment.together import ALONE, Together

REPEATS = 15
COLD_BYTES = 192 << 20  # more than the last-level cache of any processor or GPU of today, rotated through
ONE_HOST = "software path, one host"


@dataclass(frozen=True, slots=True)
class PathTimes:
    """Seconds [repeats] of each size, and what was measured in words."""

    label: str
    size_bytes: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]


def measure_paths(
    runner: TorchRunner, sizes: list[int], token_bytes: int, together: Together = ALONE
) -> list[PathTimes]:
    """Every path of the runner's device, idle and while it decodes. `token_bytes`: KV of one token, all layers, of
    this rank, as are the sizes and the seconds; `together`: the ranks, which begin each transfer at once."""
    device = runner.device
    kinds = _gpu_paths(device, token_bytes) if device.type == "cuda" else _cpu_paths(token_bytes)
    if device.type == "cuda" and together.ranks == 1:
        kinds += _peer_paths(device)
    found = []
    for label, prepare in kinds:
        for busy in (False, True):
            with _decoding(runner, together) if busy else _idle():
                times = tuple(_repeated(prepare(size), device, together) for size in sizes)
            words = f"{label}, {'while decoding' if busy else 'idle'}"
            found.append(PathTimes(words, tuple(sizes), times))
    return found


Prepared = Callable[[int], Callable[[int], None]]  # size -> (repeat -> None)


def _cpu_paths(token_bytes: int) -> list[tuple[str, Prepared]]:
    cpu = torch.device("cpu")
    return [
        (f"copy within main memory ({ONE_HOST})", lambda size: _copies(size, cpu, cpu, pinned=False)),
        (f"pages gathered in main memory ({ONE_HOST})", lambda size: _gathers(size, token_bytes, cpu, cpu)),
    ]


def _gpu_paths(device: torch.device, token_bytes: int) -> list[tuple[str, Prepared]]:
    cpu = torch.device("cpu")
    return [
        (f"device to host ({ONE_HOST})", lambda size: _copies(size, device, cpu, pinned=True)),
        (f"host to device ({ONE_HOST})", lambda size: _copies(size, cpu, device, pinned=True)),
        (
            f"pages gathered, device to host ({ONE_HOST})",
            lambda size: _gathers(size, token_bytes, device, cpu),
        ),
    ]


def _peer_paths(device: torch.device) -> list[tuple[str, Prepared]]:
    """To another GPU, where there is one. Ranks would need as many more as they are: not measured for them."""
    other = next(
        (torch.device("cuda", i) for i in range(torch.cuda.device_count()) if i != (device.index or 0)), None
    )
    if other is None:
        return []
    return [
        (
            "device to device, two GPUs of one host",
            lambda size: _copies(size, device, other, pinned=False),
        )
    ]


def _copies(size: int, source: torch.device, target: torch.device, *, pinned: bool) -> Callable[[int], None]:
    def buffers(place: torch.device) -> list[torch.Tensor]:
        pin = pinned and place.type == "cpu"
        made = [
            torch.empty(size, dtype=torch.uint8, device=place, pin_memory=pin) for _ in range(_rotated(size))
        ]
        return [b.random_(0, 256) if b.device.type == "cuda" else _touched(b) for b in made]

    sources, targets = buffers(source), buffers(target)

    def run(repeat: int) -> None:
        at = repeat % len(sources)
        targets[at].copy_(sources[at], non_blocking=True)

    return run


def _gathers(
    size: int, token_bytes: int, source: torch.device, target: torch.device
) -> Callable[[int], None]:
    """Blocks of 16 tokens lie scattered in a pool; they are gathered where they are and then moved."""
    block = 16 * token_bytes
    wanted = max(1, size // block)
    blocks = max(2 * wanted, COLD_BYTES // block)
    pool = _touched(torch.empty((blocks, block), dtype=torch.uint8, device=source))
    targets = [
        torch.empty((wanted, block), dtype=torch.uint8, pin_memory=source.type == "cuda") for _ in range(2)
    ]
    rng = np.random.default_rng(0)

    def run(repeat: int) -> None:
        rows = torch.from_numpy(rng.permutation(blocks)[:wanted]).to(source)
        if target == source:
            torch.index_select(pool, 0, rows, out=targets[repeat % 2])
        else:
            targets[repeat % 2].copy_(pool.index_select(0, rows), non_blocking=True)

    return run


def _rotated(size: int) -> int:
    return max(2, min(REPEATS + 1, -(-COLD_BYTES // size)))


def _touched(buffer: torch.Tensor) -> torch.Tensor:
    """Pages that were never written are not memory, and equal bytes are not data."""
    flat = buffer.view(-1)
    pattern = torch.randint(0, 256, (min(1 << 20, flat.numel()),), dtype=torch.uint8).to(buffer.device)
    for part in flat.split(pattern.numel()):
        part.copy_(pattern[: part.numel()])
    return buffer


def _repeated(run: Callable[[int], None], device: torch.device, together: Together) -> tuple[float, ...]:
    def timed(repeat: int) -> float:
        _wait(device)
        together.meet()
        start = time.perf_counter()
        run(repeat)
        _wait(device)
        return time.perf_counter() - start

    timed(0)
    return tuple(timed(repeat + 1) for repeat in range(REPEATS))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextmanager
def _idle() -> Iterator[None]:
    yield


@contextmanager
def _decoding(runner: TorchRunner, together: Together) -> Iterator[None]:
    """Decode steps run in another thread (on a GPU on another stream) until all ranks have left the block. What fails
    in it does not wait for that thread: its ranks may be waiting for each other."""
    stop = threading.Event()
    longest = min(256, runner.spec.max_positions // 2, runner.decoder.cache.tokens // 8 - 1)
    contexts = [longest] * 4
    failed: list[Exception] = []

    def work() -> None:
        torch.set_num_threads(1)
        try:
            if runner.device.type == "cuda":
                with torch.cuda.stream(torch.cuda.Stream(runner.device)):
                    _steps(runner, contexts, stop, together)
            else:
                _steps(runner, contexts, stop, together)
        except Exception as error:  # told by the one who waits: the load was not there
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        stop.set()
        raise
    stop.set()
    thread.join()
    if failed:
        raise RuntimeError(f"decoding beside the transfers failed: {failed[0]}")


def _steps(runner: TorchRunner, contexts: list[int], stop: threading.Event, together: Together) -> None:
    seed = 0
    while not together.any_of(stop.is_set()):
        runner.measure(contexts, [], seed)
        seed += 1
