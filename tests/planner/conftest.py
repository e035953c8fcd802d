"""Answers of every kind, each really searched for on a small space, and the rows that hold them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from calibration.architecture import PRESETS
from calibration.models import Calibration
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


# Two kinds of hardware ------------------------------------------------------------------------------------------


@pytest.fixture
def second(published) -> Calibration:
    """The same step times on another device."""
    row = Calibration.objects.get(pk=published.pk)
    row.pk, row.name, row.device = uuid.uuid4(), "the other", "cuda:0"
    row.save(force_insert=True)
    return row


@pytest.fixture
def on_two(project, owner, published, second, traffic) -> Any:
    """``on_two(chosen)``: a finished plan on two kinds of hardware whose answer is on the kind with this number: the
    other one is twice as dear. And the row of the second. ``on_two("apart")`` (`pools_on_two`): its pools
    are on one kind each."""
    from planner import services, work
    from planner.search import Conditions, Link, SearchSpace, parse_objectives, plan

    def made(chosen: int | str) -> tuple[Plan, Calibration]:
        apart = chosen == "apart"
        prices = (1.0, 1.0) if apart else (2.0, 1.0) if chosen else (1.0, 2.0)
        terms = Conditions(
            price_per_gpu_hour=prices[0], second_price_per_gpu_hour=prices[1],
            link=Link.entered(50.0, 0.0) if apart else None,
        )  # fmt: skip
        objectives = ["ttft:p95:0.04", "itl:p99:0.009"] if apart else ["ttft:p95:1", "itl:p99:0.1"]
        space = SearchSpace((512,) if apart else (128,), (0,), (8,), max_replicas=2, local_prefill_tokens=())
        result = plan(
            services.traffic_of(traffic), work.step_time_model(published), 16_384, PRESETS["demo"],
            parse_objectives(objectives), space, conditions=terms,
            device=work.device_names(published, second)[0], second=work.second_hardware(published, second),
            refits=0, threads=1,
        ).to_dict()  # fmt: skip
        assert result["verdict"]["choice"]["kind"] == ({"prefill": 0, "decode": 1} if apart else chosen)
        row = Plan.objects.create(
            project=project, owner=owner, name="two kinds", calibration=published, traffic=traffic,
            second_calibration=second, objectives=result["inputs"]["objectives"], space=result["inputs"]["space"],
            conditions=terms.to_dict(), status=Plan.DONE, result=result,
            feasible=True, sentence=result["verdict"]["sentence"],
        )  # fmt: skip
        return row, second

    return made


@pytest.fixture(scope="session")
def laws(fitted_samples) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a device that prefills fast and decodes slowly, and of one that does the opposite."""
    from calibration.steptime import StepSample, fit

    def law(step_s: float, token_s: float) -> dict[str, Any]:
        def timed(sample: StepSample) -> StepSample:
            tokens = sample.shape.features[0]
            own_s = 0.004 + 3e-5 * tokens + 1e-4 * sample.shape.features[1]  # as conftest's
            factor = (step_s + token_s * tokens) / own_s
            return StepSample(sample.shape, tuple(s * factor for s in sample.seconds), sample.role)

        return fit([timed(sample) for sample in fitted_samples], seed=0, bootstrap=2).to_dict()

    return law(0.012, 1e-5), law(0.003, 2e-4)


@pytest.fixture
def pools_on_two(published, second, laws, on_two) -> tuple[Plan, Calibration]:
    """A finished plan with prefill on the first kind of hardware and decode on the second."""
    for row, law in zip((published, second), laws, strict=True):
        row.result = deepcopy(row.result) | {"model": law}
        row.save(update_fields=["result"])
    return on_two("apart")
