"""Answers of every kind, each really searched for on a small space, and the rows that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibration.architecture import PRESETS
from planner.models import Plan

Answer = dict[str, Any]


@pytest.fixture(scope="session")
def searched(calibration_result) -> Callable[..., Answer]:
    """``searched("ttft:p95:1", rate_per_s=4)``: what a finished plan stores."""
    from calibration.steptime import StepTimeModel
    from planner.search import SearchSpace, parse_objectives, plan
    from planner.traffic import synthesise

    model = StepTimeModel.from_dict(calibration_result["model"])

    def search(*objectives: str, rate_per_s: float = 0.5, most: int = 2, **options: Any) -> Answer:
        space = SearchSpace((128, 256, 512), (0, 128), (8, 16), max_replicas=most)
        traffic = synthesise("demo", requests=200, rate_per_s=rate_per_s, seed=1)
        return plan(traffic, model, 16_384, PRESETS["demo"], parse_objectives(objectives), space, refits=2,
                    threads=1, device="cpu", **options).to_dict()  # fmt: skip

    return search


@pytest.fixture(scope="session")
def answers(searched) -> dict[str, Answer]:
    stops = iter([False] * 3 + [True] * 1000)
    return {
        "feasible": searched("ttft:p95:0.1", "itl:p99:0.011", "e2e:p50:60", rate_per_s=100),
        "impossible": searched("ttft:p95:0.001", "itl:p99:0.05"),
        "short": searched("ttft:p95:0.012", rate_per_s=30, most=1),
        "saturated": searched("ttft:p95:0.2", rate_per_s=2_000, most=1),
        "stopped": searched("ttft:p95:0.0001", should_stop=lambda: next(stops)),
    }


@pytest.fixture
def make_plan(project, owner, published, traffic) -> Callable[..., Plan]:
    """``make_plan(status="failed", ...)``; ``answer``: a result to store with its verdict."""

    def made(answer: Answer | None = None, **values: Any) -> Plan:
        stored: dict[str, Any] = {}
        if answer is not None:
            verdict = answer["verdict"]
            stored = {"result": answer, "feasible": verdict["feasible"], "sentence": verdict["sentence"],
                      "objectives": answer["inputs"]["objectives"], "space": answer["inputs"]["space"]}  # fmt: skip
        defaults = {"name": "the plan", "calibration": published, "traffic": traffic, "objectives": ["ttft:p95:1"],
                    "space": {"max_replicas": 8}, "status": Plan.DONE}  # fmt: skip
        return Plan.objects.create(project=project, owner=owner, **{**defaults, **stored, **values})

    return made
