"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from accounts import tokens
from accounts.models import ApiToken, Membership, Project
from calibration.architecture import PRESETS
from calibration.models import Calibration
from planner.models import Plan, TrafficSet, Verification
from planner.simulation import ready
from tests.dealing import pytest_collection_modifyitems, pytest_xdist_make_scheduler

if TYPE_CHECKING:
    from calibration.steptime import StepSample

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]
User = get_user_model()
# The same examples in every run: what fails here fails everywhere, and what passes says something about the change.
hypothesis.settings.register_profile("the same", derandomize=True, deadline=None)
hypothesis.settings.load_profile("the same")

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption(
        "--database", action="store_true", help="only tests that use the database or make an installation"
    )


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder with other people's data (traces, scheduler recordings, configs), which is not in this
    repository. REFERENCE_DATA names it; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("REFERENCE_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("reference data not found: set REFERENCE_DATA")
    return folder


@pytest.fixture(autouse=True)
def nobody_waits_for_a_compiler(monkeypatch) -> None:
    """The web server waits for a process that compiles all kernels. Here this process compiles what a test needs."""
    monkeypatch.setattr("planner.what_if_subject.await_compiled", lambda *_: None)


# People: a project with its owner, a member and a viewer, and somebody from elsewhere ---------------------------


@pytest.fixture
def several_users(settings, db) -> None:
    """Multi-user mode: nobody is signed in by merely being on this machine."""
    settings.SINGLE_USER = False


@pytest.fixture
def project(several_users) -> Project:
    return Project.objects.create(name="Ridge", slug="ridge")


def _person(name: str, project: Project, role: str) -> User:
    user = User.objects.create_user(name)
    Membership.objects.create(project=project, user=user, role=role)
    return user


@pytest.fixture
def owner(project) -> User:
    return _person("owner", project, Membership.OWNER)


@pytest.fixture
def member(project) -> User:
    return _person("member", project, Membership.MEMBER)


@pytest.fixture
def viewer(project) -> User:
    return _person("viewer", project, Membership.VIEWER)


@pytest.fixture
def outsider(several_users) -> User:
    """Owns a project of their own, and is in no other."""
    return _person("outsider", Project.objects.create(name="Elsewhere", slug="elsewhere"), Membership.OWNER)


def signed_in(user: User, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


@pytest.fixture
def owner_client(owner) -> Client:
    return signed_in(owner)


@pytest.fixture
def member_client(member) -> Client:
    return signed_in(member)


@pytest.fixture
def viewer_client(viewer) -> Client:
    return signed_in(viewer)


@pytest.fixture
def outsider_client(outsider) -> Client:
    return signed_in(outsider)


@pytest.fixture
def bearer() -> Callable[..., dict[str, str]]:
    """``client.get(url, headers=bearer(user))``: a fresh token of the user's."""

    def header(user: User, scope: str = ApiToken.WRITE) -> dict[str, str]:
        return {"Authorization": f"Bearer {tokens.issue(user, 'test', scope, None)[1]}"}

    return header


@pytest.fixture
def no_broker(monkeypatch) -> list[tuple[str, str]]:
    """Jobs are written but not sent; the list holds what would have been: (task, id)."""
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr("calibration.jobs._send", lambda task, pk: sent.append((task.name, str(pk))))
    return sent


# A model that was fitted, to steps whose law is known: nothing here is measured ------------------------------------


@pytest.fixture(scope="session")
def fitted_samples() -> list[StepSample]:
    """Steps of 4 ms + 30 us a token + 100 us a decode, with 1 % of noise; each fifth shape is held out."""
    from calibration.steptime import Chunk, StepSample, StepShape

    decodes = [StepShape((context,) * batch, ()) for batch in (1, 2, 4, 8, 16) for context in (16, 256, 1000)]
    prefills = [
        StepShape((), (Chunk(query, cached),)) for query in (16, 64, 256, 512) for cached in (0, 128, 500)
    ]
    mixed = [
        StepShape((context,) * batch, (Chunk(query, cached),))
        for batch in (1, 4, 15) for context in (64, 512) for query in (16, 128, 400) for cached in (0, 300)
    ]  # fmt: skip
    noise = np.random.default_rng(0)

    def sample(shape: StepShape, role: str) -> StepSample:
        tokens, rows = shape.features[:2]
        base_s = 0.004 + 3e-5 * tokens + 1e-4 * rows
        return StepSample(shape, tuple(base_s * (1 + 0.01 * noise.standard_normal(5))), role)

    shapes = [*decodes, *prefills, *mixed]
    return [sample(shape, "fit") for shape in shapes] + [sample(shape, "heldout") for shape in shapes[::5]]


@pytest.fixture(scope="session")
def calibration_result(fitted_samples) -> dict[str, Any]:
    """What a finished calibration stores."""
    from calibration.pipeline import CalibrationResult
    from calibration.steptime import fit, gate, heldout_report

    model = fit(fitted_samples, seed=0, bootstrap=8)
    report = heldout_report(model, [sample for sample in fitted_samples if sample.role == "heldout"])
    return CalibrationResult(fitted_samples, {}, model, report, gate(report, "cpu"), None).to_dict()


@pytest.fixture(scope="session")
def simulator() -> None:
    """Compiled as far as vLLM's plans need it, by one process however many run tests."""
    ready.wait(lambda: None, ready.VLLM)


@pytest.fixture(scope="session")
def plan_result(calibration_result, simulator) -> dict[str, Any]:
    """What a finished plan stores: a small space, really searched."""
    from calibration.steptime import StepTimeModel
    from planner.search import SearchSpace, parse_objectives, plan
    from planner.traffic import synthesise

    space = SearchSpace(budgets_tokens=(256, 512), max_num_seqs=(8, 16), max_replicas=2)
    return plan(
        synthesise("demo", requests=50, seed=1), StepTimeModel.from_dict(calibration_result["model"]), 16_384,
        PRESETS["demo"], parse_objectives(["ttft:p50:1", "itl:p50:0.05"]), space, refits=2, threads=1,
    ).to_dict()  # fmt: skip


# Objects of the project -----------------------------------------------------------------------------------------


@pytest.fixture
def calibration(project, owner) -> Calibration:
    """A cancelled one: measured a little, published nothing."""
    from calibration import services
    from calibration.steptime import Chunk, StepSample, StepShape

    row = Calibration.objects.create(
        project=project, owner=owner, name="demo on cpu", architecture=PRESETS["demo"].to_dict(), device="cpu",
        envelope={"max_batch": 16, "max_context_tokens": 1024, "max_step_tokens": 512}, kv_tokens=16_384,
        status=Calibration.CANCELLED, provenance={"engine": "ridgeline"},
    )  # fmt: skip
    shape = StepShape(decode_contexts=(100, 200), chunks=(Chunk(64, 0),))
    services.store_samples(row, [StepSample(shape, (0.010, 0.011))])
    return row


@pytest.fixture
def published(project, owner, fitted_samples, calibration_result) -> Calibration:
    """A finished one that plans may rest on."""
    from calibration import services

    gate = calibration_result["gate"]
    row = Calibration.objects.create(
        project=project, owner=owner, name="demo, published", architecture=PRESETS["demo"].to_dict(), device="cpu",
        envelope={"max_batch": 16, "max_context_tokens": 1024, "max_step_tokens": 512}, kv_tokens=16_384,
        status=Calibration.DONE, published=gate["passed"], reason=gate["reason"], result=calibration_result,
        provenance={"engine": "ridgeline"},
    )  # fmt: skip
    services.store_samples(row, fitted_samples)
    return row


@pytest.fixture
def finished_plan(project, owner, published, traffic, plan_result) -> Plan:
    verdict = plan_result["verdict"]
    return Plan.objects.create(
        project=project, owner=owner, name="finished", calibration=published, traffic=traffic,
        objectives=["ttft:p50:1", "itl:p50:0.05"], space=plan_result["inputs"]["space"], status=Plan.DONE,
        result=plan_result, feasible=verdict["feasible"], sentence=verdict["sentence"],
    )  # fmt: skip


@pytest.fixture(scope="session")
def verification_result(simulator) -> dict[str, Any]:
    """A report on a device that takes as long as was predicted."""
    from planner.simulation import kernel
    from planner.verification.loop import replay
    from planner.verification.report import compare
    from planner.verification_results import result_of
    from tests.planner.verification.device import KNOBS, LAW, STEPS, Device, some_requests

    requests = some_requests(60)
    predicted = kernel.simulate(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None, KNOBS, LAW
    )
    replays = [replay(Device(noise=0.01), requests, KNOBS, LAW)]
    return result_of(compare(predicted, [], replays, STEPS, "cpu"), 0, 60, predicted, replays, STEPS)


@pytest.fixture
def verification(project, owner, finished_plan, verification_result) -> Verification:
    return Verification.objects.create(
        project=project, owner=owner, name="Replay of finished", plan=finished_plan, requests=60,
        status=Verification.DONE, result=verification_result, holds=True,
        sentence=verification_result["sentence"],
    )  # fmt: skip


@pytest.fixture
def traffic(project, owner) -> TrafficSet:
    from planner.services import create_traffic
    from planner.traffic import synthesise

    return create_traffic(project, owner, "demo", synthesise("demo", requests=50, seed=1))


@pytest.fixture
def plan(project, owner, calibration, traffic) -> Plan:
    return Plan.objects.create(
        project=project, owner=owner, name="demo on demo", calibration=calibration, traffic=traffic,
        objectives=["ttft:p95:1"], space={"max_replicas": 8}, status=Plan.FAILED, error="For the test.",
    )  # fmt: skip
