"""One kind of hardware as a plan is given it: its step times, its KV pool, and whose engine they were measured with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibration.architecture import Architecture
from calibration.capacity import KVCapacity
from calibration.engines import MeasuredEngine
from planner.search.draws import StepTimes
from planner.search.inputs import sha256


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """`capacity`: KV tokens of one replica, by token budget. measured_engine None: the planned engine's own times."""

    device: str
    model: StepTimes
    capacity: KVCapacity
    measured_engine: MeasuredEngine | None = None

    def bytes_per_token(self, architecture: Architecture) -> float:
        """Of the KV cache of one replica: of all its ranks together."""
        return float(architecture.kv_bytes_per_token(tensor_parallel=self.capacity.ranks))

    def inputs(self, gpus: int, price: float | None, most_replicas: int) -> dict[str, Any]:
        """What is recorded of it: `step_time_sha256` is the version of the step times."""
        return {
            "device": self.device,
            "step_time_sha256": sha256(self.model.to_dict()),
            "kv_capacity": self.capacity.to_dict(),
            "measured_engine": self.measured_engine.to_dict() if self.measured_engine else None,
            "gpus_per_replica": gpus,
            "price_per_gpu_hour": price,
            "max_replicas": most_replicas,
        }
