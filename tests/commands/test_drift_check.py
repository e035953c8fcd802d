"""manage.py drift_check: exit 0 where nothing moved, 1 where it did, 2 for what cannot be measured here."""

import io
import json

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from calibration import services
from calibration.architecture import PRESETS
from calibration.experiment import DEMO_ENVELOPE
from calibration.experiment.drift import judge_drift
from calibration.facts import NOTHING_KNOWN
from calibration.models import Calibration
from calibration.steptime import StepSample, StepShape

pytestmark = pytest.mark.django_db
THEN = [StepSample(StepShape((100 * k,)), (0.01 * k,) * 5, "fit") for k in range(1, 5)]


@pytest.fixture
def calibration(owner, project) -> Calibration:
    request = services.CalibrationRequest("mine", PRESETS["demo"], "cpu", DEMO_ENVELOPE, 20_000)
    row = services.create_calibration(project, owner, request)
    row.status, row.environment = Calibration.DONE, {"dtype": "float32"}
    row.save()
    services.store_samples(row, THEN)
    return row


def check(owner, named) -> tuple[int, dict]:
    out, code = io.StringIO(), 0
    try:
        call_command("drift_check", named, "--json", "--user", owner.get_username(), stdout=out)
    except SystemExit as left:
        code = left.code
    except CommandError as error:
        code = error.returncode
    return code, json.loads(out.getvalue().splitlines()[-1])


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 1)])
def test_the_exit_code_is_the_answer(owner, calibration, monkeypatch, factor, code) -> None:
    def again(architecture, envelope, samples, environment, **options):
        assert (options["device"], options["kv_tokens"], samples) == ("cpu", 20_000, THEN)
        return judge_drift(
            THEN, [StepSample(s.shape, (s.median_s * factor,) * 10, "fit") for s in THEN], "cpu"
        )

    monkeypatch.setattr("calibration.drift.drift_check", again)
    for named in ("mine", str(calibration.pk)):
        found, told = check(owner, named)
        assert found == code
        assert told["drifted"] == bool(code)
        assert told["calibration"] == str(calibration.pk)
        assert told["mean"]["low"] <= told["mean"]["log_ratio"] <= told["mean"]["high"]
        assert len(told["sentinels"]) == 4


def test_what_cannot_be_measured_again_is_bad_input(owner, calibration) -> None:
    assert check(owner, "nothing")[0] == 2
    Calibration.objects.filter(pk=calibration.pk).update(
        source=Calibration.IMPORTED, facts=NOTHING_KNOWN.to_dict()
    )
    code, told = check(owner, "mine")
    assert code == 2
    assert told["errors"][0]["field"] == "calibration"
    assert "not measured by this engine" in told["detail"]
