"""Names that nobody chose are told apart, because commands know calibrations by their names."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from calibration import services
from calibration.architecture import PRESETS
from calibration.curve_forms import ImportCurvesForm
from calibration.experiment import DEMO_ENVELOPE
from calibration.forms import ImportStepsForm, ImportVllmLogForm
from calibration.models import Calibration
from calibration.starting import MAX_NAME, distinct_name

TABLE = b"prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms\n" + b"".join(
    b"0,0,%d,%d,%d.5\n" % (rows, 16 * rows, rows + 10) for rows in range(1, 12)
)


def form(**data: str) -> ImportStepsForm:
    values = {"model": "demo", "device": "H200", "kv_tokens": "20000", **data}
    return ImportStepsForm(values, {"file": SimpleUploadedFile("steps.csv", TABLE)})


def asked(**data: str) -> services.ImportRequest:
    filled = form(**data)
    assert filled.is_valid(), filled.errors
    return filled.request()


def test_importing_twice_gives_two_names_and_a_chosen_name_stays(project, owner, no_broker) -> None:
    made = [services.create_import(project, owner, asked()).name for _ in range(2)]
    assert made == ["demo-30m on H200 (imported)", "demo-30m on H200 (imported) (2)"]
    assert [services.create_import(project, owner, asked(name="mine")).name for _ in range(2)] == ["mine"] * 2
    first = services.start_import(project, owner, asked(device="B200"))
    assert services.start_import(project, owner, asked(device="B200")).pk == first.pk, "it is at it"
    Calibration.objects.filter(pk=first.pk).update(status="done")
    assert services.start_import(project, owner, asked(device="B200")).name == f"{first.name} (2)"


def test_measuring_twice_gives_two_names(project, owner) -> None:
    request = services.CalibrationRequest(
        "demo on cpu", PRESETS["demo"], "cpu", DEMO_ENVELOPE, 20_000, default_named=True
    )
    made = [services.create_calibration(project, owner, request).name for _ in range(3)]
    assert made == ["demo on cpu", "demo on cpu (2)", "demo on cpu (3)"]


@pytest.mark.django_db
def test_a_long_name_keeps_its_number(calibration) -> None:
    calibration.name = "x" * MAX_NAME
    calibration.save()
    name = distinct_name(Calibration.objects.all(), "x" * 200)
    assert name == "x" * (MAX_NAME - 4) + " (2)"


@pytest.mark.parametrize("kind", [ImportStepsForm, ImportVllmLogForm, ImportCurvesForm])
def test_an_import_has_no_model_until_somebody_says_which(kind) -> None:
    field = kind.base_fields["model"]
    assert (field.initial, field.required, field.choices[0][0]) == (None, True, "")
    assert "random" not in field.help_text
    filled = kind({"device": "H200"}, {})
    assert "model" in filled.errors
    assert " selected" not in str(kind()["model"]).replace('value="" selected', "")
