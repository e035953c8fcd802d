"""Starts an engine, one process or one for each rank of a model, and talks to it. Used as a context manager: the
processes are gone afterwards.

Under tensor parallelism every rank gets every request and answers it; a step takes as long as its slowest rank. A rank
that dies leaves the others waiting in a sum for ever: so all are waited for together, and when one has ended or
failed alone the others are killed and the error says which.
"""

from __future__ import annotations

import dataclasses
import os
import selectors
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from calibration.architecture import Architecture
from calibration.engine import wire
from calibration.engine.interface import ChunkTuple, ServedStep, StepTiming
from calibration.engine.rank_process import REPOSITORY, RankProcess
from calibration.engine.sharding import CannotShard, check_shards

__all__ = ["REPOSITORY", "EngineClient", "EngineError", "rank_device"]

GRACE_S = 10.0  # for the other ranks, after one has answered that it failed


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH")
    return str(REPOSITORY) + (os.pathsep + inherited if inherited else "")


def rank_device(device: str, rank: int) -> str:
    """The device of a rank: GPUs from the named one on; on a CPU all ranks share it."""
    kind, _, index = device.partition(":")
    return device if kind == "cpu" else f"{kind}:{int(index or 0) + rank}"


def _shape(
    operation: str, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int
) -> dict[str, object]:
    return {
        "op": operation,
        "decode_contexts": [int(context) for context in decode_contexts],
        "chunks": [[int(query), int(cached), bool(sampled)] for query, cached, sampled in chunks],
        "seed": int(seed),
    }


class EngineError(RuntimeError):
    """The engine could not start or failed; the message ends with the last lines it wrote."""


class EngineClient:
    """A `Runner` whose engine is another process, or several. Not for several threads at once."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        device: str = "cpu",
        dtype: str = "auto",
        kv_tokens: int,
        max_positions: int,
        seed: int = 0,
        timeout_s: float = 600.0,
        lock_descriptor: int | None = None,
        lock_descriptors: Sequence[int] = (),
        tensor_parallel: int = 1,
        mixed_mode: str = "unified",
    ) -> None:
        """Starts the processes and builds the model; raises EngineError with the engine's own words.

        `lock_descriptor`, `lock_descriptors`: of the devices' locks, kept open by the processes as long as they live.
        `tensor_parallel`: ranks, each on its own GPU from `device` on; on a CPU all share the processors, which is
        for testing. kv_tokens: of the whole model; every rank holds its heads of all of them.
        """
        try:
            check_shards(architecture, tensor_parallel)
        except CannotShard as error:
            raise EngineError(str(error)) from None
        self._timeout_s = timeout_s
        held = (*lock_descriptors, *(() if lock_descriptor is None else (lock_descriptor,)))
        self._folder = tempfile.TemporaryDirectory(prefix="ridgeline-ranks-")  # where ranks find each other
        self._ranks = [RankProcess(_python_path(), timeout_s, held) for _ in range(tensor_parallel)]
        start: dict[str, object] = {"op": "start", "architecture": architecture.to_dict(), "dtype": dtype}
        start |= {"kv_tokens": kv_tokens, "max_positions": max_positions, "seed": seed}
        start |= {
            "mixed_mode": mixed_mode,
            "ranks": len(self._ranks),
            "meeting": str(Path(self._folder.name) / "meeting"),
        }
        try:
            answers = self._answers(
                [start | {"rank": r, "device": rank_device(device, r)} for r in range(len(self._ranks))]
            )
        except BaseException:
            self.close()
            raise
        self._environment: dict[str, object] = answers[0]["environment"]

    @property
    def pid(self) -> int:
        return self._ranks[0].pid

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.pid for rank in self._ranks)

    @property
    def _connection(self) -> Any:
        return self._ranks[0].connection

    def environment(self) -> dict[str, object]:
        return dict(self._environment)

    def measure(
        self,
        decode_contexts: Sequence[int],
        chunks: Sequence[ChunkTuple],
        seed: int,
        *,
        lead_in: Sequence[int] = (),
    ) -> StepTiming:
        """As Runner.measure; raises EngineError when the engine failed, was killed or does not answer."""
        if lead_in:
            self.measure(lead_in, (), seed + 1)
        answers = self._request(_shape("measure", decode_contexts, chunks, seed))
        slowest = max(answers, key=lambda answer: float(answer["seconds"]))
        contended = any(bool(answer["contended"]) for answer in answers)
        return StepTiming(float(slowest["seconds"]), float(slowest["host_gap_s"]), contended)

    def ceilings(self) -> dict[str, float]:
        """The device's copy_bytes_per_s and matmul_flops_per_s, measured now (of all ranks together); raises
        EngineError."""
        answers = self._request({"op": "ceilings"})
        self._environment = answers[0]["environment"]  # captured sizes are known by now
        found = {str(key): float(value) for key, value in answers[0]["ceilings"].items()}
        for key in ("copy_bytes_per_s", "matmul_flops_per_s"):
            found[key] = sum(float(answer["ceilings"][key]) for answer in answers)
        return found

    def breakdown(
        self, decode_contexts: Sequence[int], chunks: Sequence[ChunkTuple], seed: int
    ) -> dict[str, float]:
        """Shares of a profiled step (of the first rank): matmul, attention, memory, gaps; wall_s of that pass.
        Raises EngineError."""
        answer = self._request(_shape("breakdown", decode_contexts, chunks, seed))[0]
        return {str(key): float(value) for key, value in answer["shares"].items()}

    def usage(self) -> dict[str, float]:
        """The engine's cpu_s so far and peak_bytes of memory, of all ranks together."""
        answers = self._request({"op": "usage"})
        return {key: sum(float(answer[key]) for answer in answers) for key in ("cpu_s", "peak_bytes")}

    def attach(self, descriptor: int, size_bytes: int) -> None:
        """Memory shared with another engine; the descriptor is among the locks', which the process was given."""
        self._request({"op": "attach", "descriptor": descriptor, "bytes": size_bytes})

    def serve(self, step: ServedStep) -> tuple[StepTiming, list[int]]:
        """As ServingRunner.serve; raises EngineError."""
        answer = self._request({"op": "serve", **dataclasses.asdict(step)})[0]
        seconds, gap_s = float(answer["seconds"]), float(answer["host_gap_s"])
        return StepTiming(seconds, gap_s, bool(answer["contended"])), [int(t) for t in answer["tokens"]]

    def logits(self, step: ServedStep) -> list[list[float]]:
        """Of the sampled rows [S][vocabulary], untimed; raises EngineError."""
        return list(self._request({"op": "logits", **dataclasses.asdict(step)})[0]["logits"])

    def export_kv(self, blocks: Sequence[int]) -> float:
        """As ServingRunner.export_kv; raises EngineError."""
        return float(self._request({"op": "export", "blocks": list(blocks)})[0]["seconds"])

    def import_kv(self, blocks: Sequence[int]) -> float:
        """As ServingRunner.import_kv; raises EngineError."""
        return float(self._request({"op": "import", "blocks": list(blocks)})[0]["seconds"])

    def close(self) -> None:
        """Ends the processes, by request or else by force. May be called twice."""
        for rank in self._ranks:
            rank.ask_to_stop()
        for rank in self._ranks:
            rank.close()
        self._folder.cleanup()

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, message: dict[str, object]) -> list[dict[str, Any]]:
        return self._answers([message] * len(self._ranks))

    def _answers(self, messages: Sequence[dict[str, object]]) -> list[dict[str, Any]]:
        """Each rank's answer to its message."""
        operation = messages[0]["op"]
        for index, (rank, message) in enumerate(zip(self._ranks, messages, strict=True)):
            try:
                rank.send(message)
            except TimeoutError:
                raise self._too_slow(operation) from None
            except (wire.WireClosed, OSError):
                raise self._ended(index) from None
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + (self._connection.gettimeout() or self._timeout_s)
        with selectors.DefaultSelector() as waiting:
            for index, rank in enumerate(self._ranks):
                waiting.register(rank.connection, selectors.EVENT_READ, index)
            while len(found) < len(self._ranks):
                ready = waiting.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise self._failed_alone(found) or self._too_slow(operation)
                for key, _ in ready:
                    waiting.unregister(key.fileobj)
                    found[key.data] = self._received(key.data, operation)
                    if found[key.data].get("ok") is not True:
                        deadline = min(deadline, time.monotonic() + GRACE_S)
        for answer in found.values():
            if answer.get("ok") is not True:
                raise EngineError(f"{answer.get('error', 'unknown error')}")
        return [found[index] for index in range(len(self._ranks))]

    def _received(self, index: int, operation: object) -> dict[str, Any]:
        try:
            return self._ranks[index].receive()
        except TimeoutError:
            raise self._too_slow(operation) from None
        except (wire.WireClosed, OSError):
            raise self._ended(index) from None

    def _failed_alone(self, found: dict[int, dict[str, Any]]) -> EngineError | None:
        """What a rank said that failed while others still wait for it."""
        for index, answer in found.items():
            if answer.get("ok") is not True:
                self._kill()
                return EngineError(
                    f"{self._named(index)} failed alone: {answer.get('error', 'unknown error')}"
                )
        return None

    def _too_slow(self, operation: object) -> EngineError:
        self._kill()
        return EngineError(f"the engine did not answer {operation!r} in time")

    def _ended(self, index: int) -> EngineError:
        words = self._ranks[index].last_words()
        self._kill()
        return EngineError(f"{self._named(index)} ended{words}")

    def _named(self, index: int) -> str:
        many = len(self._ranks)
        return "the engine process" if many == 1 else f"the engine process of rank {index} of {many}"

    def _kill(self) -> None:
        """None of several ranks goes on without the others."""
        for rank in self._ranks:
            rank.kill()
