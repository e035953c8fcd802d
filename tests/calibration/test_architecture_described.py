"""Models that are described and not run: shown by every surface, refused where a model would be measured,
welcome where step times were measured elsewhere."""

import io
import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command

from calibration import measure, services
from calibration.architecture import PRESETS, Architecture, parse_config
from calibration.describe import KV_DTYPES, described
from calibration.document import CalibrationDocument, read_document, write_document
from calibration.experiment import BadEnvelope, Envelope, check_fits
from calibration.forms import CalibrateForm, ImportDocumentForm, ImportStepsForm
from calibration.pipeline import calibrate
from calibration.schemas import ArchitectureOut
from tests.calibration.configs import CONFIGS

NOT_RUN = sorted(family for family in CONFIGS if not parse_config(CONFIGS[family]).runnable)
ENVELOPE = Envelope(4, 128, 64)
STEPS = b"prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms\n0,0,1,16,5\n16,0,0,0,8\n"


@pytest.fixture
def config_file(tmp_path):
    def written(family):
        path = tmp_path / f"{family}.json"
        path.write_text(json.dumps(CONFIGS[family]))
        return str(path)

    return written


def command(*arguments):
    out = io.StringIO()
    call_command("model", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue().splitlines()[-1])


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_the_command_describes_every_family(family, config_file):
    path = config_file(family)
    figures = command(path)
    assert figures == described(parse_config(CONFIGS[family], family))
    on_four = command(path, "--tensor-parallel", "4", "--kv-dtype", "fp8", "--block-tokens", "64")
    assert on_four["kv_bytes_per_token"] == parse_config(CONFIGS[family]).kv_bytes_per_token(1, 4)
    assert on_four["kv_bytes_full_context"] % 64 == 0
    assert on_four["parameters"] == figures["parameters"]


def test_the_command_in_words(config_file, capsys):
    call_command("model", config_file("gpt_oss"))
    said = capsys.readouterr().out
    assert "- The published weights are mxfp4; weight bytes are stated for bf16." in said


@pytest.mark.parametrize(
    "option", [("--tensor-parallel", "0"), ("--block-tokens", "0"), ("--tensor-parallel", "9999")]
)
def test_the_command_refuses_what_makes_no_sense(option):
    with pytest.raises(CommandError, match="must be from 1 to"):
        call_command("model", "demo", *option)


def test_the_api_answers_with_everything_that_is_described():
    assert set(ArchitectureOut.model_fields) == set(described(PRESETS["demo"]))
    for config in CONFIGS.values():
        figures = described(parse_config(config))
        assert json.loads(ArchitectureOut(**figures).model_dump_json()) == figures
    assert {described(PRESETS["demo"], kv_dtype=kind)["kv_bytes_per_token"] for kind in KV_DTYPES} == {
        2048, 4096, 8192,
    }  # fmt: skip


@pytest.mark.parametrize("family", NOT_RUN)
def test_measuring_is_refused_with_the_reason(family, config_file, capsys, tmp_path):
    a = parse_config(CONFIGS[family])
    with pytest.raises(BadEnvelope, match="can be described but not run here") as refusal:
        check_fits(a, ENVELOPE, device="cpu", free_bytes=1 << 40)
    assert refusal.value.field == "model"
    assert a.not_run_reason in refusal.value.message
    assert measure.main(["--model", config_file(family), "--out", str(tmp_path / "x")]) == measure.BAD_INPUT
    assert a.not_run_reason in capsys.readouterr().err


def test_the_job_refuses_too():
    with pytest.raises(BadEnvelope, match="not run here"):
        calibrate(parse_config(CONFIGS["gpt_oss"]), ENVELOPE, device="cpu", kv_tokens=4096)


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - set(NOT_RUN)))
def test_what_is_run_has_as_many_weights_in_the_engine(family):
    torch = pytest.importorskip("torch")
    from calibration.engine.weights import random_weights

    a = parse_config(CONFIGS[family])
    assert (
        random_weights(a, dtype=torch.float32, device=torch.device("cpu"), seed=0).parameters == a.parameters
    )


@pytest.mark.django_db
def test_the_form_refuses_to_calibrate_and_says_why():
    data = {"model": "config", "config_text": json.dumps(CONFIGS["gpt_oss"]), "device": "cpu", "max_batch": 4,
            "max_context_tokens": 128, "max_step_tokens": 64}  # fmt: skip
    form = CalibrateForm(data)
    assert set(form.errors) == {"model"}
    assert form.errors["model"] == [
        "gpt_oss can be described but not run here: its attention has sinks and its experts a clamped gate, which "
        "the engine does not have."
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("family", NOT_RUN)
def test_step_times_measured_elsewhere_are_imported(family, project, owner):
    data = {
        "model": "config",
        "config_text": json.dumps(CONFIGS[family]),
        "device": "H200",
        "kv_tokens": 4096,
    }
    form = ImportStepsForm(data, {"file": SimpleUploadedFile("steps.csv", STEPS)})
    assert form.is_valid(), form.errors
    row = services.create_import(project, owner, form.request())
    row.refresh_from_db()
    assert Architecture.from_dict(row.architecture) == parse_config(CONFIGS[family])
    document = services.document_of(row)
    again = ImportDocumentForm({}, {"file": SimpleUploadedFile("c.json", write_document(document))})
    assert again.is_valid(), again.errors
    assert again.request().architecture == parse_config(CONFIGS[family])


@pytest.mark.django_db
def test_the_page_of_an_imported_one_says_what_was_not_measured_here(project, owner, owner_client, no_broker):
    data = {
        "model": "config",
        "config_text": json.dumps(CONFIGS["gpt_oss"]),
        "device": "H200",
        "kv_tokens": 4096,
    }
    form = ImportStepsForm(data, {"file": SimpleUploadedFile("steps.csv", STEPS)})
    assert form.is_valid()
    row = services.create_import(project, owner, form.request())
    page = owner_client.get(f"/calibrations/{row.pk}/").content.decode()
    assert "Described, not run here" in page
    preview = owner_client.post("/calibrations/preview", data | {"max_batch": 4, "max_context_tokens": 128})
    words = preview.content.decode()
    assert "Described, not run here" in words
    assert "2 of 8 for a token" in words
    assert "window of 32 tokens" in words


def test_a_calibration_file_keeps_every_part(fitted_samples):
    for config in CONFIGS.values():
        a = parse_config(config)
        document = CalibrationDocument(a, "H200", None, 4096, 0, {}, fitted_samples[:2], None, {})
        assert read_document(io.BytesIO(write_document(document))).architecture == a
