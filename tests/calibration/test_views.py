"""Pages of calibrations: every state, every refusal, what a viewer may not do, and what a name cannot do."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from calibration import services
from calibration.architecture import PRESETS
from calibration.capacity import KVCapacity
from calibration.document import read_document, write_document
from calibration.engines import MeasuredEngine
from calibration.experiment import Region, points
from calibration.facts import Facts
from calibration.models import Calibration, Device
from calibration.steptime import StepTimeModel
from calibration.transfer import TransferTable

pytestmark = pytest.mark.django_db
NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
CSV = b"prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms\n"

STATES: dict[str, dict[str, Any]] = {
    "queued": {"status": "queued"},
    "running": {
        "status": "running",
        "done": 17,
        "total": 68,
        "eta_s": 80,
        "message": "8 decodes",
        "log": "12:00 at it",
    },
    "failed": {"status": "failed", "error": "It needs 140 GiB.", "traceback": "Traceback: secret"},
    "refused": {"status": "done", "published": False, "reason": "refused: median 7.9% (bar 6%)"},
    "cancelled": {"status": "cancelled", "message": "Cancelled."},
    "interrupted": {"status": "interrupted", "error": "The worker stopped answering."},
    "done": {"status": "done", "published": True, "reason": "held-out error: median 2.0%"},
}
BADGES = {"refused": "refused by the gate", "done": "published"}


@pytest.fixture
def make(project, owner):
    def made(**values: Any) -> Calibration:
        defaults = {
            "name": "demo", "architecture": PRESETS["demo"].to_dict(), "device": "cpu", "kv_tokens": 16_384,
            "envelope": {"max_batch": 16, "max_context_tokens": 1024, "max_step_tokens": 512},
            "provenance": {"engine": "ridgeline"}, "started_at": timezone.now(),
        }  # fmt: skip
        return Calibration.objects.create(project=project, owner=owner, **{**defaults, **values})

    return made


def url(name: str, row: Calibration, *more: str) -> str:
    return reverse(f"calibration:{name}", args=[row.pk, *more])


# A calibration's page ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("measured", [False, True], ids=["nothing measured", "samples"])
def test_the_page_of_each_state(
    state, measured, make, owner_client, fitted_samples, calibration_result
) -> None:
    result = calibration_result if state == "done" else None
    if state == "refused":
        result = {**calibration_result, "model": None, "published": False}
    row = make(**STATES[state], result=result)
    if measured:
        services.store_samples(row, fitted_samples[:20])
    page = owner_client.get(url("detail", row)).content.decode()
    active = state in ("queued", "running")
    assert f">{BADGES.get(state, state)}</span>" in page
    assert ("every 1s" in page) == active
    assert (url("cancel", row) in page) == active
    assert (url("rerun", row) in page) == (not active)
    assert page.count("data-figure-url") == (4 if measured or active else 0)
    assert (url("samples_csv", row) in page) == (measured and not active)
    for words in (STATES[state].get("reason"), STATES[state].get("error")):
        assert not words or words in page
    polled = owner_client.get(url("status", row))
    assert polled.status_code == (200 if active else 286)
    assert ("hx-get" in polled.content.decode()) == active


def test_a_running_job_tells_how_far_it_is(make, owner_client) -> None:
    page = owner_client.get(url("status", make(**STATES["running"]))).content.decode()
    assert "<strong>17</strong> of 68" in page
    assert 'value="25" max="100"' in page
    assert 'data-percent="25"' in page
    assert "1\u00a0min\u00a020\u00a0s" in page
    assert "8 decodes" in page
    assert "12:00 at it" in page


def test_the_page_of_a_published_one(published, owner_client) -> None:
    page = owner_client.get(url("detail", published)).content.decode()
    heldout = published.result["heldout"]
    assert f"{heldout['median'] * 100:.1f}\u00a0%" in page
    assert page.count('<tr><th scope="row">') == 4  # decode, prefill, mixed, all
    assert "32.5\u00a0million" in page
    assert "4,096" in page
    assert "Max context [tokens]" in page


def test_a_device_is_shown_by_its_name(published, owner_client) -> None:
    Calibration.objects.filter(pk=published.pk).update(environment={"processor": "AMD EPYC 9R14"})
    named = "on AMD EPYC 9R14, one core, measured here"
    assert named in " ".join(owner_client.get(url("detail", published)).content.decode().split())
    assert "AMD EPYC 9R14, one core" in owner_client.get(reverse("calibration:list")).content.decode()


def test_tracebacks_are_for_staff(make, owner, owner_client) -> None:
    row = make(**STATES["failed"])
    assert "secret" not in owner_client.get(url("detail", row)).content.decode()
    owner.is_staff = True
    owner.save()
    assert "secret" in owner_client.get(url("detail", row)).content.decode()


def test_a_first_attempt_that_was_refused_is_told(make, owner_client, calibration_result) -> None:
    row = make(**STATES["done"], result={**calibration_result, "first_reason": "refused: p90 21%"})
    assert "A first attempt was refused: p90 21%." in owner_client.get(url("detail", row)).content.decode()


def test_names_are_text_everywhere(make, owner_client, fitted_samples) -> None:
    row = make(name=NASTY[:120], status="running", log=NASTY, message=NASTY[:100], device=NASTY[:100],
               environment={NASTY: NASTY}, provenance={"file": NASTY})  # fmt: skip
    services.store_samples(row, fitted_samples[:4])
    for address in (url("detail", row), url("status", row), reverse("calibration:list"), reverse("home")):
        page = owner_client.get(address).content.decode()
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    title = owner_client.get(url("figure", row, "decode")).json()["title"]
    assert "<" not in title
    assert "&lt;script&gt;" in title


# Figures and downloads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["decode", "prefill", "mixed", "accuracy"])
def test_figures(name, published, owner_client) -> None:
    answer = owner_client.get(url("figure", published, name))
    assert answer.status_code == 200
    assert answer.json()["data"]
    again = owner_client.get(url("figure", published, name), headers={"If-None-Match": answer["ETag"]})
    assert again.status_code == 304


def test_a_figure_changes_its_tag_when_more_is_measured(make, owner_client, fitted_samples) -> None:
    row = make(**STATES["running"])
    services.store_samples(row, fitted_samples[:4])
    tag = owner_client.get(url("figure", row, "decode"))["ETag"]
    services.store_samples(row, fitted_samples[4:6], first=4)
    answer = owner_client.get(url("figure", row, "decode"), headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert len(answer.json()["table"]["rows"]) == 6


def test_there_is_no_figure_of_another_name(published, owner_client) -> None:
    assert owner_client.get(url("figure", published, "pie")).status_code == 404


def test_the_csv_has_every_repeat(published, owner_client, fitted_samples) -> None:
    answer = owner_client.get(url("samples_csv", published))
    assert answer["Content-Disposition"].startswith("attachment; filename=")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert len(rows) == sum(len(s.seconds) for s in fitted_samples)
    assert [float(row["step_s"]) for row in rows[:5]] == list(fitted_samples[0].seconds)
    mixed = next(row for row in rows if row["kind"] == "mixed")
    assert mixed["decode_contexts"].split() == [mixed["decode_context"]] * int(mixed["decode_seqs"])


def test_the_document_comes_back_as_the_same_calibration(published, owner_client, no_broker) -> None:
    document = owner_client.get(url("document_json", published)).content
    assert json.loads(document)
    answer = owner_client.post(reverse("calibration:import"), {
        "kind": "document", "document-file": SimpleUploadedFile("c.json", document)})  # fmt: skip
    assert answer.status_code == 302, answer.content.decode()
    copy = Calibration.objects.exclude(pk=published.pk).get()
    assert services.samples_of(copy) == services.samples_of(published)
    assert copy.architecture == published.architecture


def test_a_running_one_has_no_document_yet(make, owner_client, fitted_samples) -> None:
    row = make(**STATES["running"])
    services.store_samples(row, fitted_samples[:4])
    assert owner_client.get(url("document_json", row)).status_code == 404


# The list ----------------------------------------------------------------------------------------------------------


def test_an_empty_list_says_what_to_do(owner_client) -> None:
    page = owner_client.get(reverse("calibration:list")).content.decode()
    assert "Nothing measured yet" in page
    assert reverse("calibration:new") in page
    assert reverse("calibration:import") in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"queued", "running", "failed", "refused", "cancelled", "interrupted", "done", "mistral"}),
        ("status=active", {"queued", "running", "mistral"}),
        ("status=published", {"done"}),
        ("status=refused", {"refused"}),
        ("status=failed", {"failed"}),
        ("status=interrupted", {"interrupted"}),
        ("source=imported", {"mistral"}),
        ("model=Mistral-7B-v0.3", {"mistral"}),
        ("model=demo-30m&status=cancelled", {"cancelled"}),
        ("status=nonsense&source=%00&model=%00", {"queued", "running", "failed", "refused", "cancelled",
                                                   "interrupted", "done", "mistral"}),
    ],
)  # fmt: skip
def test_filters_stand_in_the_address(query, expected, make, owner_client) -> None:
    for state, values in STATES.items():
        make(name=state, **values)
    make(name="mistral", source="imported", status="running", architecture=PRESETS["mistral-7b"].to_dict())
    page = owner_client.get(f"{reverse('calibration:list')}?{query}")
    assert {row.name for row in page.context["page"]} == expected


def test_chips_keep_the_other_filters(make, owner_client) -> None:
    make(name="one", **STATES["failed"])
    page = owner_client.get(f"{reverse('calibration:list')}?status=failed&page=1").content.decode()
    assert 'href="?status=failed&amp;source=imported"' in page
    assert '<a class="chip" href="?status=failed" aria-current="true">failed</a>' in page


def test_long_lists_have_pages(make, owner_client) -> None:
    for number in range(27):
        make(name=f"number {number}", status="failed")
    first = owner_client.get(f"{reverse('calibration:list')}?status=failed")
    assert len(first.context["page"]) == 25
    assert 'href="?status=failed&amp;page=2"' in first.content.decode()
    assert len(owner_client.get(f"{reverse('calibration:list')}?page=2").context["page"]) == 2


def test_the_list_does_not_load_results(published, owner_client, django_assert_max_num_queries) -> None:
    with django_assert_max_num_queries(10):
        page = owner_client.get(reverse("calibration:list"))
    row = page.context["page"][0]
    assert "result" in row.get_deferred_fields()
    assert row.heldout_median == pytest.approx(published.result["heldout"]["median"])


# Starting ------------------------------------------------------------------------------------------------------------

VALID = {
    "model": "demo",
    "device": "cpu",
    "max_batch": 16,
    "max_context_tokens": 1024,
    "max_step_tokens": 512,
}


def test_the_form_offers_what_workers_announced(owner_client) -> None:
    Device.objects.create(name="cuda:0", label="H200", hostname="x", total_bytes=2**37, free_bytes=2**36)
    page = owner_client.get(reverse("calibration:new")).content.decode()
    assert "cuda:0: H200, 64.0\u00a0GiB free" in page


def test_starting_one(owner_client, owner, project, no_broker) -> None:
    answer = owner_client.post(reverse("calibration:new"), VALID)
    row = Calibration.objects.get()
    assert answer.headers["Location"] == url("detail", row)
    assert (row.status, row.owner, row.project) == ("queued", owner, project)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"max_batch": "many"}, "max_batch"),
        ({"max_context_tokens": ""}, "max_context_tokens"),
        ({"model": "gpt-9"}, "model"),
        ({"device": "cuda:7"}, "device"),
        ({"model": "config"}, "config_text"),
        ({"model": "config", "config_text": "{"}, "config_text"),
        ({"model": "config", "config_text": '{"model_type": "mamba"}'}, "config_text"),
        ({"model": "config", "config_text": "\x00"}, "config_text"),
        ({"kv_tokens": 10**12}, "kv_tokens"),
        ({"seed": -1}, "seed"),
        ({"name": "x" * 121}, "name"),
    ],
)
def test_errors_stand_beside_their_field_and_values_stay(wrong, field, owner_client) -> None:
    answer = owner_client.post(reverse("calibration:new"), {**VALID, "name": "kept", **wrong})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == [field]
    assert f'id="id_{field}_error"' in page
    assert f'{field}" aria-describedby="' in page or f'id="id_{field}"' in page
    assert 'aria-invalid="true"' in page
    if "name" not in wrong:
        assert 'value="kept"' in page
    assert not Calibration.objects.exists()


def test_what_does_not_fit_is_refused_with_bytes(owner_client) -> None:
    Device.objects.create(name="cpu", label="small", hostname="x", total_bytes=2**31, free_bytes=2**30)
    answer = owner_client.post(reverse("calibration:new"), {**VALID, "model": "llama-3.1-70b"})
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["device"]
    assert "1,073,741,824 bytes" in answer.content.decode()


def test_the_preview_tells_what_a_model_amounts_to(owner_client) -> None:
    page = owner_client.post(
        reverse("calibration:preview"), {**VALID, "model": "llama-3.1-8b"}
    ).content.decode()
    assert "8.03\u00a0billion" in page
    assert "15.0\u00a0GiB" in page
    assert "131,072 bytes per token" in page


def test_the_preview_counts_the_steps_that_a_run_would_time(owner_client) -> None:
    """The run's own list (calibration/pipeline.py), which grows with the region."""
    small, large = (
        owner_client.post(
            reverse("calibration:preview"),
            {**VALID, "max_batch": batch, "max_context_tokens": context, "max_step_tokens": budget},
        )
        for batch, context, budget in ((1, 64, 32), (16, 1024, 512))
    )
    request = large.context["would_be"]
    listed = points(Region(request.envelope, request.kv_tokens), "cpu", request.seed)
    fitted = sum(point.role == "fit" for point in listed)
    assert 12 < fitted < len(listed)
    assert f"{fitted} step shapes to be fitted, {len(listed) - fitted} held out" in large.content.decode()
    assert small.context["would_be"].steps()["fit"] < fitted


def test_the_preview_reads_an_uploaded_config(owner_client) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    upload = SimpleUploadedFile("config.json", json.dumps(config).encode())
    page = owner_client.post(
        reverse("calibration:preview"), {**VALID, "model": "config", "config_file": upload}
    )
    assert "2 layers, hidden 64" in page.content.decode()
    assert "KV cache here" in page.content.decode()


def test_the_preview_refuses_in_words(owner_client) -> None:
    Device.objects.create(name="cpu", label="small", hostname="x", total_bytes=2**31, free_bytes=2**30)
    page = owner_client.post(
        reverse("calibration:preview"), {**VALID, "model": "llama-3.1-70b"}
    ).content.decode()
    assert "does not fit" in page
    odd = owner_client.post(
        reverse("calibration:preview"), {"model": "config", "config_text": '{"model_type": "rwkv"}'}
    )
    assert "rwkv" in odd.content.decode()


# Importing --------------------------------------------------------------------------------------------------


def steps_form(content: bytes, **changed: Any) -> dict[str, Any]:
    return {"kind": "steps", "steps-file": SimpleUploadedFile("steps.csv", content), "steps-model": "demo",
            "steps-device": "RTX 4090", "steps-kv_tokens": 41_408, **changed}  # fmt: skip


def test_importing_step_times(owner_client, no_broker) -> None:
    rows = b"".join(b"0,0,%d,%d,%.3f\n" % (b, c, 10 + b / 10) for b in (1, 2, 4, 8) for c in (16, 64, 256))
    answer = owner_client.post(reverse("calibration:import"), steps_form(CSV + rows))
    row = Calibration.objects.get()
    assert answer.headers["Location"] == url("detail", row)
    assert row.source == "imported"
    assert row.provenance["file"] == "steps.csv"
    assert row.provenance["rows"] == 12
    assert row.samples.count() == 12


def test_a_bad_row_is_told_by_its_line(owner_client) -> None:
    answer = owner_client.post(reverse("calibration:import"), steps_form(CSV + b"0,0,1,16,10\n0,0,x,16,10\n"))
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["file"]
    page = answer.content.decode()
    assert "line 3" in page
    assert 'value="RTX 4090"' in page
    assert not Calibration.objects.exists()


def test_a_file_above_the_limit_is_413(owner_client, settings) -> None:
    settings.MAX_UPLOAD_BYTES = 64
    answer = owner_client.post(reverse("calibration:import"), steps_form(CSV + b"0,0,1,16,10\n" * 20))
    assert answer.status_code == 413
    assert "larger than the limit" in answer.content.decode()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1]", b'{"schema_version": 1e400}'])
def test_a_document_that_is_none_is_refused(content, owner_client) -> None:
    answer = owner_client.post(reverse("calibration:import"), {
        "kind": "document", "document-file": SimpleUploadedFile("c.json", content)})  # fmt: skip
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["file"]


def test_an_import_of_another_kind_is_nothing(owner_client) -> None:
    assert owner_client.post(reverse("calibration:import"), {"kind": "pickle"}).status_code == 404


# Changing, and who may -----------------------------------------------------------------------------------------------


def test_cancel_and_run_again(make, owner_client, no_broker) -> None:
    row = make(status="queued", started_at=None)
    owner_client.post(url("cancel", row))
    row.refresh_from_db()
    assert row.status == "cancelled"
    late = owner_client.post(url("cancel", row), follow=True)
    assert "It had already ended." in late.content.decode()
    answer = owner_client.post(url("rerun", row))
    copy = Calibration.objects.exclude(pk=row.pk).get()
    assert answer.headers["Location"] == url("detail", copy)
    assert copy.rerun_of == row
    assert url("detail", row) in owner_client.get(url("detail", copy)).content.decode()


@pytest.mark.parametrize("action", ["cancel", "rerun"])
def test_changes_need_post(action, calibration, owner_client) -> None:
    assert owner_client.get(url(action, calibration)).status_code == 405


def test_a_viewer_looks_and_changes_nothing(make, viewer_client, no_broker) -> None:
    row = make(**STATES["running"])
    page = viewer_client.get(url("detail", row)).content.decode()
    assert url("cancel", row) not in page
    refused = viewer_client.post(url("cancel", row))
    assert refused.status_code == 403
    assert "not change it" in refused.content.decode()
    assert viewer_client.get(reverse("calibration:new")).status_code == 403
    row.refresh_from_db()
    assert not row.cancel_requested


@pytest.mark.parametrize("name", ["new", "import", "preview"])
def test_forms_carry_csrf(name, owner) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    refused = client.post(reverse(f"calibration:{name}"), VALID)
    assert refused.status_code == 403
    assert "This form had expired" in refused.content.decode()
    assert not Calibration.objects.exists()


@pytest.mark.parametrize("action", ["cancel", "rerun"])
def test_job_actions_carry_csrf(action, calibration, owner) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    assert client.post(url(action, calibration)).status_code == 403


def test_starting_too_much_is_429(settings, owner_client, no_broker) -> None:
    settings.RATE_LIMITS_ENABLED = True
    answers = [owner_client.post(reverse("calibration:new"), VALID) for _ in range(31)]
    assert [a.status_code for a in answers[:30]] == [302] * 30
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert "try again" in answers[-1].content.decode()


def test_a_model_survives_its_row(published) -> None:
    assert isinstance(services.step_time_model(published), StepTimeModel)


def test_what_is_at_work_is_not_run_again(make, owner_client, no_broker) -> None:
    row = make(status="running")
    answer = owner_client.post(url("rerun", row), follow=True)
    assert "It is still running." in answer.content.decode()
    assert Calibration.objects.count() == 1


def test_what_unpacks_to_too_much_is_413(owner_client, settings) -> None:
    settings.MAX_UNPACKED_BYTES = 64
    answer = owner_client.post(reverse("calibration:import"), steps_form(CSV + b"0,0,1,16,10\n" * 20))
    assert answer.status_code == 413
    assert "larger than 64 bytes" in answer.content.decode()


def test_a_document_of_too_many_bytes_is_413(owner_client, monkeypatch) -> None:
    monkeypatch.setattr("calibration.document.MAX_BYTES", 64)
    form = {"kind": "document", "document-file": SimpleUploadedFile("calibration.json", b" " * 65)}
    assert owner_client.post(reverse("calibration:import"), form).status_code == 413


def test_a_device_of_an_import_travels_on_as_a_document(owner_client, no_broker) -> None:
    owner_client.post(
        reverse("calibration:import"),
        steps_form(CSV + b"0,0,1,16,10\n", **{"steps-device": " RTX\n4090\u00a0 (24 GB)"}),
    )
    row = Calibration.objects.get()
    assert row.device == "RTX 4090 (24 GB)"
    assert read_document(io.BytesIO(write_document(services.document_of(row)))).device == row.device


def test_a_name_that_turns_the_text_around_it_is_refused(owner_client) -> None:
    form = steps_form(CSV + b"0,0,1,16,10\n", **{"steps-name": "cal\u202efdp"})
    answer = owner_client.post(reverse("calibration:import"), form)
    assert list(answer.context["form"].errors) == ["name"]


def test_the_page_shows_pools_transfers_and_whose_engine_it_was(published, owner_client) -> None:
    facts = Facts(
        MeasuredEngine("vllm", "0.27.1", "iteration log"),
        KVCapacity((256, 2048), (1 << 20, 3 << 20), (41_408, 39_936), "measured on H200"),
        (
            TransferTable(
                (1e6, 1e8), (1e-5, 1e-5), (5e9, 2e10), "device to host (software path, one host), idle"
            ),
        ),
    )
    Calibration.objects.filter(pk=published.pk).update(facts=facts.to_dict())
    page = owner_client.get(url("detail", published)).content.decode()
    assert page.count("<dt>Engine</dt>") == 1
    costs = services.chunk_arithmetic(published)
    assert "What chunks cost" in page
    assert [cost.weight_rereads + 1 for cost in costs] == [cost.passes for cost in costs]
    assert len({cost.prompt_tokens for cost in costs}) in (1, 2)
    for words in (
        "vllm 0.27.1",
        "41,408",
        "39,936",
        "measured on H200",
        "device to host (software path, one host)",
    ):
        assert words in page
    assert "Of one rank" not in page
    link = {
        "gigabytes_per_s": "25",
        "latency_us": "10",
        "uncertainty_percent": "15",
        "label": "a <b>link</b>",
    }
    assert owner_client.post(url("links", published), link).status_code == 302
    page = owner_client.get(url("detail", published)).content.decode()
    assert "entered: a &lt;b&gt;link&lt;/b&gt;" in page
    wrong = owner_client.post(url("links", published), link | {"latency_us": "-1"})
    assert wrong.status_code == 422
    assert 'id="id_latency_us_error"' in wrong.content.decode()
    assert len(services.facts_of(Calibration.objects.get(pk=published.pk)).transfers) == 2


def test_the_page_tells_bytes_of_a_rank_and_of_the_whole(published, owner_client) -> None:
    facts = Facts(
        MeasuredEngine("ridgeline"),
        KVCapacity((256,), (1 << 20,), (41_408,), "the smallest of 4 ranks", ranks=4),
        (TransferTable.measured((8e6, 16e6), (1e-3, 2e-3), label="4 ranks at once", ranks=4),),
    )
    Calibration.objects.filter(pk=published.pk).update(facts=facts.to_dict(), tensor_parallel=4)
    page = " ".join(owner_client.get(url("detail", published)).content.decode().split())
    assert "Working memory of a rank [bytes]" in page
    assert '8.00</th><td class="n">2.00</td><td class="n">1.00</td><td class="n">8.00</td>' in page


def test_the_page_shows_the_device_s_ceilings_and_where_a_phase_s_time_goes(published, owner_client) -> None:
    steps = {
        "intensity_flops_per_byte": 1.02,
        "share_of_copy": 0.41,
        "share_of_matmul": 0.02,
        "bound_by": "memory",
    }
    shares = {"matmul": 0.62, "attention": 0.21, "memory": 0.07, "gaps": 0.1}
    environment = {
        "ceilings": {"copy_bytes_per_s": 4.3e12, "matmul_flops_per_s": 7.8e14},
        "roofline": {"decode": steps, "prefill": None, "reasons": ["decode <b>reaches</b> 41%"]},
        "breakdown": {"decode": shares},
    }
    Calibration.objects.filter(pk=published.pk).update(environment=environment)
    page = owner_client.get(url("detail", published)).content.decode()
    for words in ("4,300 GB/s", "780 TFLOP/s", "181 FLOP per byte", "Decode, one sequence", "&lt;b&gt;reaches",
                  "Where a step's time goes", "62"):  # fmt: skip
        assert words in page, words
    drawn = owner_client.get(reverse("calibration:figure", args=[published.pk, "decode"])).json()
    assert "ceilings" in drawn["note"]
    answer = owner_client.get(f"/api/v1/calibrations/{published.pk}").json()
    assert answer["environment"]["ceilings"]["matmul_flops_per_s"] == 7.8e14
    assert answer["environment"]["breakdown"]["decode"]["attention"] == 0.21
