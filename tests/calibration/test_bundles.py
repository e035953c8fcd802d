"""Calibrations that come with Ridgeline: listed with provenance and checksum, never changed, imported as a copy."""

import hashlib
import json

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from calibration import bundles, services
from calibration.bundles import bundled, bundled_document
from calibration.document import DocumentError, write_document
from calibration.models import Calibration
from config.commandline import BadInput

API = "/api/v1/calibrations"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in place of the release's own."""
    monkeypatch.setattr(bundles, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, published):
    """One run's folder as scripts/gpu_check.sh writes it, with a calibration file in it."""
    Calibration.objects.filter(pk=published.pk).update(
        device="cuda:0", environment={"device_name": "NVIDIA H200", "tensor_parallel": 2}
    )
    document = services.document_of(Calibration.objects.get(pk=published.pk))
    place = folder / "h200"
    place.mkdir()
    (place / "llama-8b.json").write_bytes(write_document(document))
    (place / "llama-8b.summary.json").write_text(json.dumps({"published": True}))
    (place / "quick.json").write_text("[]")
    told = {"commit": "abc", "gpu": "NVIDIA H200, 580.1", "changed_files": 0, "clocks": "", "odd": [1]}
    (place / "provenance.json").write_text(json.dumps(told))
    return place


@pytest.fixture
def api(owner, bearer, no_broker) -> Client:
    return Client(headers=bearer(owner))


def test_the_release_s_own_folder_is_readable() -> None:
    assert [entry.problem for entry in bundled() if entry.problem] == []


def test_none_is_no_mistake(folder, owner_client, capsys) -> None:
    assert bundled() == []
    assert bundled(folder / "nowhere") == []
    assert "Measured for you" not in owner_client.get(reverse("calibration:import")).content.decode()
    call_command("import_bundled", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"bundled": []}


@pytest.mark.django_db
def test_a_file_is_listed_with_what_it_says_and_its_run(run, published) -> None:
    (entry,) = bundled()
    assert (entry.name, entry.problem, entry.published) == ("h200/llama-8b", "", True)
    assert (entry.model, entry.device, entry.engine) == ("demo-30m", "2 x NVIDIA H200", "ridgeline")
    assert entry.sha256 == hashlib.sha256((run / "llama-8b.json").read_bytes()).hexdigest()
    assert entry.steps == published.samples.count()
    assert entry.provenance == {"commit": "abc", "gpu": "NVIDIA H200, 580.1", "changed_files": "0"}
    assert bundled()[0] == entry


@pytest.mark.django_db
def test_a_damaged_file_is_listed_with_its_reason_and_not_imported(run, owner_client, no_broker) -> None:
    path = run / "llama-8b.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    (entry,) = bundled()
    assert "checksum" in entry.problem
    with pytest.raises(DocumentError):
        bundled_document(entry)
    page = owner_client.get(reverse("calibration:import")).content.decode()
    assert "cannot be imported" in page
    answer = owner_client.post(reverse("calibration:import_bundled"), {"name": entry.name}, follow=True)
    assert "does not match the content" in answer.content.decode()
    assert Calibration.objects.count() == 1


@pytest.mark.django_db
def test_a_file_that_changed_after_it_was_listed_is_refused(run) -> None:
    (entry,) = bundled()
    (run / "llama-8b.json").write_bytes(b"{}")
    with pytest.raises(DocumentError, match="has changed"):
        bundled_document(entry)


def check(copy: Calibration, entry: bundles.Bundled) -> None:
    assert copy.source == Calibration.IMPORTED
    assert copy.name == "demo-30m on 2 x NVIDIA H200 (bundled)"
    assert copy.samples.count() == entry.steps
    assert copy.tensor_parallel == services.kv_capacity(copy).ranks == 2
    assert services.document_of(copy).ranks == 2
    assert copy.provenance["file"] == "h200/llama-8b.json"
    assert copy.provenance["sha256"] == entry.sha256
    assert copy.provenance["bundled"]["commit"] == "abc"


def test_one_click(run, owner_client, no_broker, published) -> None:
    page = owner_client.get(reverse("calibration:import")).content.decode()
    assert 'value="h200/llama-8b"' in page
    answer = owner_client.post(reverse("calibration:import_bundled"), {"name": "h200/llama-8b"})
    assert answer.status_code == 302
    check(Calibration.objects.exclude(pk=published.pk).get(), bundled()[0])


@pytest.mark.parametrize("name", ["h200/other", "../h200/llama-8b", "/etc/passwd"])
def test_a_name_is_compared_and_never_a_path(name, run, api) -> None:
    answer = api.post(f"{API}/import-bundled", json.dumps({"name": name}), content_type="application/json")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "name"


def test_by_api(run, api, published) -> None:
    (listed,) = api.get(f"{API}/bundled").json()
    assert (listed["name"], listed["problem"]) == ("h200/llama-8b", "")
    data = json.dumps({"name": listed["name"]})
    answer = api.post(f"{API}/import-bundled", data, content_type="application/json")
    assert answer.status_code == 202, answer.content
    check(Calibration.objects.get(pk=answer.json()["id"]), bundled()[0])


@pytest.mark.django_db
def test_by_command(run, capsys, owner) -> None:
    call_command("import_bundled", "h200/llama-8b", "--user", owner.get_username(), "--json")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    check(Calibration.objects.get(pk=told["calibration"]), bundled()[0])
    with pytest.raises(BadInput, match="no bundled calibration"):
        call_command("import_bundled", "h200/none", "--user", owner.get_username())
