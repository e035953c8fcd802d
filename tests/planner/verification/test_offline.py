"""The replay without the application, with a device of the test's own in the engine's place."""

from __future__ import annotations

import contextlib
import json

import pytest

from calibration.architecture import PRESETS
from calibration.document import CalibrationDocument, write_document
from calibration.experiment import DEMO_ENVELOPE
from calibration.steptime import StepShape, StepTimeModel, step_seconds
from calibration.steptime.shapes import Chunk
from planner.verification import offline
from tests.planner.verification.device import Device


@pytest.fixture
def written(tmp_path, calibration_result, fitted_samples, monkeypatch):
    """A calibration's file; and the engine takes as long as it says, times `Engine.stretch`."""
    path = tmp_path / "calibration.json"
    document = CalibrationDocument(
        PRESETS["demo"], "cpu", DEMO_ENVELOPE, 16_384, 0, {"dtype": "float32"}, fitted_samples,
        calibration_result["model"], {"engine": "ridgeline"},
    )  # fmt: skip
    path.write_bytes(write_document(document))
    arrays = StepTimeModel.from_dict(calibration_result["model"]).arrays()

    class Engine(Device):
        stretch_all = 1.0

        def measure(self, decode_contexts, chunks, seed, lead_in=()):
            timing = super().measure(decode_contexts, chunks, seed, lead_in=lead_in)
            shape = StepShape(tuple(decode_contexts), tuple(Chunk(*chunk) for chunk in chunks))
            seconds = step_seconds(arrays, *shape.features)[0] * self.stretch_all
            return type(timing)(seconds, timing.host_gap_s, timing.contended)

    monkeypatch.setattr(offline, "EngineClient", lambda *args, **more: contextlib.nullcontext(Engine()))
    monkeypatch.setattr(offline, "device_lock", lambda *args, **more: contextlib.nullcontext(0))
    return path, Engine


@pytest.mark.parametrize(("stretch", "status"), [(1.0, offline.HOLDS), (1.4, offline.MISSED)])
def test_it_says_whether_the_device_did_what_was_predicted(written, tmp_path, capsys, stretch, status):
    path, engine = written
    engine.stretch_all = stretch
    out = tmp_path / "report.json"
    asked = [str(path), "--requests", "60", "--replays", "2", "--out", str(out)]
    assert offline.main(asked) == status
    report = json.loads(out.read_text())
    assert (report["holds"], report["replays"], report["clock"]) == (status == 0, 2, "virtual")
    assert report["busy_bias"] == pytest.approx(1 / stretch - 1)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["sentence"] == report["sentence"]
    assert "waiting for cpu" in printed.err and "TTFT p95" in printed.err


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    assert offline.main([str(tmp_path / "nosuch.json")]) == offline.BAD_INPUT
    assert capsys.readouterr().err == f"{tmp_path / 'nosuch.json'}: No such file or directory\n"


def test_what_was_not_published_predicts_nothing(tmp_path, capsys, fitted_samples):
    path = tmp_path / "refused.json"
    document = CalibrationDocument(
        PRESETS["demo"], "cpu", DEMO_ENVELOPE, 16_384, 0, {}, fitted_samples, None, {"engine": "ridgeline"}
    )
    path.write_bytes(write_document(document))
    assert offline.main([str(path)]) == offline.BAD_INPUT
    assert "not published" in capsys.readouterr().err
