"""How many devices share a model: asked for in form, API and command, only as far as there are devices."""

import dataclasses
import json

import pytest

from calibration import services
from calibration.architecture import PRESETS
from calibration.drift import asked_dtype, drift_check
from calibration.experiment import Envelope
from calibration.forms import CalibrateForm
from calibration.lineage import subject_of
from calibration.models import Calibration, Device
from calibration.steptime import Chunk, StepSample, StepShape

pytestmark = pytest.mark.django_db
REGION = {
    "model": "demo",
    "max_batch": 4,
    "max_context_tokens": 128,
    "max_step_tokens": 64,
    "kv_tokens": 2048,
}


@pytest.fixture
def gpus():
    for index in range(2):
        Device.objects.create(
            name=f"cuda:{index}", label="H200", hostname="h", total_bytes=1 << 37, free_bytes=1 << 37
        )


def form(**changes):
    return CalibrateForm(REGION | {"device": "cpu"} | changes)


def test_one_is_what_is_meant_when_nothing_is_said():
    assert form().is_valid()
    assert form().is_valid() and form(tensor_parallel=1).is_valid()
    filled = form()
    filled.is_valid()
    assert filled.request().tensor_parallel == 1


def test_on_a_cpu_it_is_allowed_for_testing(project, owner):
    filled = form(tensor_parallel=2)
    assert filled.is_valid(), filled.errors
    row = services.create_calibration(project, owner, filled.request())
    assert row.tensor_parallel == 2
    # So does running it again; the name has been given by then.
    assert services.request_of(row) == dataclasses.replace(filled.request(), default_named=False)
    row.environment = {"dtype": "float32"}
    assert services.why_no_drift_check(row) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cuda:0", "tensor_parallel": 2}, ""),
        ({"device": "cuda:1", "tensor_parallel": 2}, "No device worker has announced cuda:2."),
        ({"device": "cuda:0", "tensor_parallel": 4}, "cuda:2, cuda:3"),
        ({"device": "cuda:0", "tensor_parallel": 3}, "do not divide among 3 ranks"),
        ({"device": "cuda:0", "tensor_parallel": 0}, "greater than or equal to 1"),
        ({"device": "cuda:0", "tensor_parallel": 65}, "less than or equal to 64"),
    ],
)
def test_gpus_are_counted_from_the_named_one_on(gpus, changes, words):
    filled = form(**changes)
    if not words:
        assert filled.is_valid(), filled.errors
        return
    assert not filled.is_valid()
    assert words in " ".join(filled.errors["tensor_parallel"])


def test_the_api_takes_it_and_tells_it(owner_client, project, monkeypatch):
    monkeypatch.setattr("calibration.jobs.send_after_commit", lambda *arguments: None)

    def post(ranks):
        body = json.dumps(REGION | {"device": "cpu", "tensor_parallel": ranks, "project": project.slug})
        return owner_client.post("/api/v1/calibrations", body, content_type="application/json")

    refused = post(3)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "tensor_parallel"
    started = post(2)
    assert started.status_code in (201, 202), started.content
    row = Calibration.objects.get()
    assert row.tensor_parallel == 2
    assert owner_client.get(f"/api/v1/calibrations/{row.pk}").json()["tensor_parallel"] == 2


def test_types_and_modes_are_asked_for_and_kept(project, owner, gpus):
    filled = form(device="cuda:0", dtype="float8", mixed_mode="split")
    assert filled.is_valid(), filled.errors
    request = filled.request()
    assert (request.dtype, request.mixed_mode) == ("float8", "split")
    row = services.create_calibration(project, owner, request)
    assert services.request_of(row) == dataclasses.replace(request, default_named=False)
    plain = form(device="cuda:0")
    assert plain.is_valid(), plain.errors
    usual = services.create_calibration(project, owner, plain.request())
    assert (services.request_of(usual).dtype, services.request_of(usual).mixed_mode) == ("auto", "unified")
    assert subject_of(row) != subject_of(usual)
    older = Calibration(provenance={"engine": "ridgeline"})
    assert subject_of(older)[4:7] == subject_of(usual)[4:7]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"device": "cpu", "mixed_mode": "split"}, "mixed_mode"), ({"dtype": "int4"}, "dtype"),
     ({"mixed_mode": "both"}, "mixed_mode")],
)  # fmt: skip
def test_types_and_modes_that_are_none(changes, field, gpus):
    Device.objects.create(name="cpu", label="a core", hostname="h", total_bytes=1 << 37, free_bytes=1 << 37)
    filled = form(**{"device": "cuda:0"} | changes)
    assert not filled.is_valid()
    assert list(filled.errors) == [field]


def test_an_engine_of_8_bit_weights_is_started_again_as_one():
    assert asked_dtype({"dtype": "bfloat16", "weights": "float8_e4m3fn, a scale per row"}) == "float8"
    assert asked_dtype({"dtype": "bfloat16", "weights": "as dtype"}) == "bfloat16"
    assert asked_dtype({}) == "auto"


def test_two_ranks_are_checked_for_drift():
    """The steps are timed on an engine of two processes; whether they moved depends on this machine, that they were
    compared with two ranks does not."""
    tiny = dataclasses.replace(PRESETS["demo"], layers=1, vocab_size=512)
    shapes = [StepShape((64,) * b) for b in (1, 4)] + [StepShape((), (Chunk(q, 0),)) for q in (16, 64)]
    then = [StepSample(shape, (0.001, 0.00101, 0.00102)) for shape in shapes]
    report = drift_check(tiny, Envelope(4, 128, 64), then, {"dtype": "float32"}, device="cpu", kv_tokens=2048,
                         tensor_parallel=2)  # fmt: skip
    assert len(report.sentinels) == 4
    assert report.environment["tensor_parallel"] == 2
