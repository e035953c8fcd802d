"""Published curves by page, API and command: a calibration whose source is a published curve."""

import io
import json

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from calibration import services
from calibration.models import Calibration
from config.commandline import BadInput

API = "/api/v1/calibrations/import-curves"


def profile(**changes) -> bytes:
    """Forty gaps and thirty prompts of a device whose steps take 5 ms, 20 µs a token and 0.1 µs a cached one."""
    prompts = np.geomspace(64, 8192, 30).round()
    loads, contexts = (
        axis.ravel() for axis in np.meshgrid(np.linspace(0.02, 0.9, 8), [128, 512, 1024, 2048, 4096])
    )
    rows = np.maximum(1, np.round(loads * 50_000 / contexts))
    arrays = {
        "prefill_isl": prompts, "prefill_ttft": 5 + 0.02 * prompts, "x_kv_usage": loads, "y_context_length": contexts,
        "z_itl": 5 + 0.02 * rows + 1e-4 * rows * contexts, "max_kv_tokens": np.array([50_000]),
    }  # fmt: skip
    out = io.BytesIO()
    np.savez(out, **arrays | changes)
    return out.getvalue()


def sent(**changes):
    file = SimpleUploadedFile("raw_data.npz", profile(**changes))
    return {"file": file, "model": "demo", "device": "H200", "engine": "dynamo 0.4"}


@pytest.fixture
def api(owner, bearer, no_broker) -> Client:
    return Client(headers=bearer(owner))


def check(row: Calibration) -> None:
    engine = services.facts_of(row).engine
    assert (engine.name, engine.version, engine.source) == ("dynamo", "0.4", "published curve")
    assert (row.kv_tokens, row.samples.count(), row.device) == (50_000, 70, "H200")
    assert row.provenance["published"]["form"] == "Dynamo's profile"
    assert "front end" in row.provenance["published"]["taken_for_granted"]
    assert row.provenance["file"] == "raw_data.npz"


def test_by_page(owner_client, no_broker) -> None:
    data = {f"curves-{name}": value for name, value in sent().items()}
    answer = owner_client.post(reverse("calibration:import"), {"kind": "curves", **data})
    assert answer.status_code == 302, answer.content
    row = Calibration.objects.get()
    check(row)
    assert "published curve" in owner_client.get(answer["Location"]).content.decode()


def test_by_page_an_error_stands_beside_its_field(owner_client) -> None:
    csv = b"batch_num_decode_tokens,batch_num_prefill_tokens,batch_execution_time\n4,0,0.05\n"
    data = {"kind": "curves", "curves-file": SimpleUploadedFile("f.csv", csv), "curves-model": "demo"}
    answer = owner_client.post(reverse("calibration:import"), data | {"curves-device": "A100"})
    assert answer.status_code == 422
    assert 'id="id_curves-context_tokens_error"' in answer.content.decode()


def test_by_api(api, no_broker) -> None:
    answer = api.post(API, sent())
    assert answer.status_code == 202, answer.content
    check(Calibration.objects.get(pk=answer.json()["id"]))
    wrong = api.post(API, sent(z_itl=np.array([1.0])))
    assert wrong.status_code == 422
    assert [error["field"] for error in wrong.json()["errors"]] == ["file"]
    twice = api.post(API, sent() | {"second_file": SimpleUploadedFile("x.csv", b"no curve\n")})
    assert [error["field"] for error in twice.json()["errors"]] == ["second_file"]


@pytest.mark.django_db
def test_by_command(tmp_path, capsys) -> None:
    path = tmp_path / "raw_data.npz"
    path.write_bytes(profile())
    call_command(
        "import_curves", str(path), "--model", "demo", "--device", "H200", "--engine", "dynamo 0.4", "--json"
    )
    out = capsys.readouterr().out
    told = json.loads(out.splitlines()[-1])
    assert told["published"]
    assert "taken for granted" in out
    check(Calibration.objects.get(pk=told["calibration"]))
    with pytest.raises(BadInput, match="is neither of Sarathi"):
        path.write_bytes(b"a,b\n1,2\n")
        call_command("import_curves", str(path), "--model", "demo", "--kv-tokens", "100")
