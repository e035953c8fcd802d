"""Calibrations through the API: start, follow, cancel, run again, list, read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from calibration.architecture import PRESETS
from calibration.describe import described
from calibration.forms import CalibrateForm
from calibration.models import Calibration, Device

URL = "/api/v1/calibrations"
STEPS = """prefill_tokens,prefill_context,decode_seqs,decode_context,step_ms
0,0,4,400,5.0
64,0,4,400,9.0
128,0,0,0,8.0
"""


@pytest.fixture
def api(owner, bearer, no_broker) -> Client:
    return Client(headers=bearer(owner))


def post(client, url, data=None):
    return client.post(url, json.dumps(data or {}), content_type="application/json")


def errors(answer) -> dict[str, str]:
    assert answer.status_code == 422, answer.content
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


def test_presets_and_descriptions_are_those_of_the_command(api):
    presets = api.get("/api/v1/architectures/presets").json()
    assert {p["key"]: p["architecture"] for p in presets} == {k: described(a) for k, a in PRESETS.items()}
    assert post(api, "/api/v1/architectures", {"model": "qwen3-8b"}).json() == described(PRESETS["qwen3-8b"])


def test_a_config_json_is_described(api):
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    answer = post(api, "/api/v1/architectures", {"config": config, "name": "mine"})
    assert answer.status_code == 200, answer.content
    assert answer.json()["name"] == "mine"
    assert answer.json()["kv_bytes_per_token"] == 2 * 2 * 256 * 2
    assert (
        "mamba" in errors(post(api, "/api/v1/architectures", {"config": {"model_type": "mamba"}}))["config"]
    )


def test_devices_are_what_workers_announced(api):
    Device.objects.create(name="cuda:0", label="H200", hostname="gpu-1", total_bytes=150, free_bytes=140)
    assert api.get("/api/v1/devices").json() == [
        {"name": "cuda:0", "label": "H200", "hostname": "gpu-1", "total_bytes": 150, "free_bytes": 140}
    ]


def test_starting_writes_the_row_and_sends_the_job(api, no_broker, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        answer = post(api, URL, {"name": "first", "max_batch": 4, "kv_tokens": 8192, "seed": 7})
    assert answer.status_code == 202, answer.content
    body = answer.json()
    row = Calibration.objects.get()
    assert (body["id"], body["status"], body["project"]) == (str(row.pk), "queued", "ridge")
    assert (row.name, row.seed, row.envelope["max_batch"], row.kv_tokens) == ("first", 7, 4, 8192)
    assert row.envelope["max_step_tokens"] == CalibrateForm.base_fields["max_step_tokens"].initial
    assert no_broker == [("calibration.tasks.run_calibration", str(row.pk))]
    assert api.get(f"{URL}/{row.pk}").json() == body


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"model": "gpt-9"}, "model"),
        ({"device": "cuda:7"}, "device"),
        ({"max_batch": 0}, "max_batch"),
        ({"max_batch": 4097}, "max_batch"),
        ({"max_batch": "16"}, "max_batch"),
        ({"max_batch": 1.5}, "max_batch"),
        ({"max_batch": True}, "max_batch"),
        ({"max_batch": None}, "max_batch"),
        ({"seed": -1}, "seed"),
        ({"kv_tokens": 10**12}, "kv_tokens"),
        ({"project": "elsewhere"}, "project"),
        ({"config": {"model_type": "llama"}}, "config"),
    ],
)
def test_bad_values_are_named_and_start_nothing(api, outsider, payload, field):
    assert set(errors(post(api, URL, payload))) == {field}
    assert not Calibration.objects.exists()


def test_the_form_speaks_through_the_api(api):
    """One place of validation: the page's words are the API's."""
    form = CalibrateForm(
        {"model": "demo", "device": "cpu", "max_batch": 0, "max_context_tokens": 1, "max_step_tokens": 1}
    )
    said = {field: messages[0] for field, messages in form.errors.items()}
    assert errors(post(api, URL, {"max_batch": 0, "max_context_tokens": 1, "max_step_tokens": 1})) == said


def test_a_viewer_may_look_but_not_start(viewer, calibration, bearer, no_broker):
    client = Client(headers=bearer(viewer))
    assert client.get(f"{URL}/{calibration.pk}").status_code == 200
    for answer in (
        post(client, URL), post(client, URL, {"project": "ridge"}), post(client, f"{URL}/{calibration.pk}/rerun"),
        post(client, f"{URL}/{calibration.pk}/cancel"),
    ):  # fmt: skip
        assert answer.status_code == 403
    assert Calibration.objects.count() == 1


def test_a_job_is_cancelled_once(api, calibration):
    Calibration.objects.update(status=Calibration.RUNNING)
    answer = post(api, f"{URL}/{calibration.pk}/cancel")
    assert (answer.status_code, answer.json()["cancel_requested"]) == (202, True)
    Calibration.objects.update(status=Calibration.CANCELLED)
    answer = post(api, f"{URL}/{calibration.pk}/cancel")
    assert answer.status_code == 409
    assert "cancelled" in answer.json()["detail"]


def test_running_again_makes_a_new_row_and_waits_for_the_old_one(api, calibration):
    answer = post(api, f"{URL}/{calibration.pk}/rerun")
    assert answer.status_code == 202
    assert answer.json()["rerun_of"] == str(calibration.pk)
    assert answer.json()["status"] == "queued"
    again = answer.json()["id"]
    assert post(api, f"{URL}/{again}/rerun").status_code == 409


def test_job_starts_are_limited_per_user(api, settings):
    settings.RATE_LIMITS_ENABLED = True
    answers = [post(api, URL).status_code for _ in range(31)]
    assert answers == [202] * 30 + [429]


def test_the_list_filters_and_pages(api, calibration, member):
    Calibration.objects.create(
        project=calibration.project, owner=member, name="second", architecture=calibration.architecture,
        device="RTX 4090", source=Calibration.IMPORTED, status=Calibration.DONE, published=True,
        result={"heldout": {"median": 0.031, "p90": 0.104}},
    )  # fmt: skip
    page = api.get(URL).json()
    assert page["count"] == 2
    assert [item["name"] for item in page["items"]] == ["second", "demo on cpu"]
    assert page["items"][0]["heldout"] == {"median": 0.031, "p90": 0.104}
    for query, names in (
        ("status=done", ["second"]), ("published=true", ["second"]), ("source=measured", ["demo on cpu"]),
        ("project=ridge&limit=1", ["second"]), ("limit=1&offset=1", ["demo on cpu"]), ("offset=2", []),
    ):  # fmt: skip
        page = api.get(f"{URL}?{query}").json()
        assert [item["name"] for item in page["items"]] == names, query
    assert api.get(f"{URL}?limit=1").json()["count"] == 2


def test_samples_come_in_order_also_of_a_cancelled_run(api, calibration):
    page = api.get(f"{URL}/{calibration.pk}/samples").json()
    assert page["count"] == 1
    assert page["items"][0] == {
        "ordinal": 0, "role": "fit", "kind": "mixed", "decode_contexts": [100, 200],
        "chunks": [{"query_tokens": 64, "cached_tokens": 0, "completes_prompt": True}],
        "seconds": [0.010, 0.011], "contended_share": 0.0, "host_gap_s": 0.0,
    }  # fmt: skip


def upload(api, **fields):
    file = SimpleUploadedFile("steps.csv", fields.pop("csv", STEPS).encode())
    data = {"file": file, "model": "demo", "device": "RTX 4090", "kv_tokens": "41408", **fields}
    return api.post(f"{URL}/import-steps", data)


def test_a_csv_of_steps_becomes_a_calibration_with_its_provenance(
    api, no_broker, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        answer = upload(api)
    assert answer.status_code == 202, answer.content
    body = answer.json()
    assert (body["source"], body["device"], body["kv_tokens"], body["samples"]) == (
        "imported",
        "RTX 4090",
        41408,
        3,
    )
    assert body["provenance"]["file"] == "steps.csv"
    assert body["provenance"]["rows"] == 3
    assert no_broker == [("calibration.tasks.fit_calibration", body["id"])]


def test_an_import_takes_a_config_json_instead_of_a_preset(api):
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    file = SimpleUploadedFile("steps.csv", STEPS.encode())
    data = {"device": "x", "kv_tokens": "4096", "config_text": json.dumps(config)}
    answer = api.post(f"{URL}/import-steps", {"file": file, **data})
    assert answer.status_code == 202, answer.content
    assert answer.json()["architecture"]["hidden_size"] == 256
    file.seek(0)
    assert set(errors(api.post(f"{URL}/import-steps", {"file": file, "model": "demo", **data}))) == {"model"}


def test_a_bad_csv_is_refused_with_its_line(api):
    answer = upload(api, csv=STEPS + "64,0,x,400,1.0\n")
    assert "5" in errors(answer)["file"]
    assert not Calibration.objects.exists()


def test_uploads_are_limited_per_user(api, settings):
    settings.RATE_LIMITS_ENABLED = True
    answers = [upload(api, csv="nonsense").status_code for _ in range(31)]
    assert answers == [422] * 30 + [429]


def test_a_file_that_is_no_calibration_is_refused(api):
    file = SimpleUploadedFile("c.json", b'{"schema": 99}')
    assert set(errors(api.post(f"{URL}/import-document", {"file": file}))) == {"file"}


def test_a_calibration_travels_as_a_document(api, calibration):
    document = api.get(f"{URL}/{calibration.pk}/document")
    assert document.status_code == 200
    file = SimpleUploadedFile("c.json", document.content)
    answer = api.post(f"{URL}/import-document", {"file": file, "name": "copy"})
    assert answer.status_code == 202, answer.content
    copy = answer.json()["id"]
    samples = [api.get(f"{URL}/{pk}/samples").json()["items"] for pk in (calibration.pk, copy)]
    assert samples[0] == samples[1]
    Calibration.objects.update(status=Calibration.RUNNING)
    assert api.get(f"{URL}/{calibration.pk}/document").status_code == 409


def vllm_log(**options) -> str:
    path = Path(__file__).parents[1] / "calibration" / "sources" / "vllm_server.py"
    spec = importlib.util.spec_from_file_location("vllm_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.serve(**options).text


def test_a_log_of_vllm_becomes_a_calibration_that_says_what_it_lacks(api):
    text = vllm_log(requests=40, version="0.27.1")
    data = {"model": "llama-3.1-8b", "device": "H200"}
    answer = api.post(
        f"{URL}/import-vllm-log", {"file": SimpleUploadedFile("vllm.log", text.encode()), **data}
    )
    assert answer.status_code == 202, answer.content
    body = answer.json()
    assert body["kv_tokens"] == 60_000
    assert body["facts"]["engine"] | {"mixed_attention": None} == {
        "name": "vllm", "version": "0.27.1", "source": "iteration log", "mixed_attention": None,
    }  # fmt: skip
    assert body["provenance"]["iterations"]["context_doubt"]["largest"] <= 0.25
    assert "does not say how long contexts are" in body["provenance"]["iterations"]["remarks"][0]
    lines = text.split("\n")
    bad = "\n".join([*lines[:6], lines[6].replace("context", "ctx"), *lines[7:]])
    refused = api.post(
        f"{URL}/import-vllm-log", {"file": SimpleUploadedFile("vllm.log", bad.encode()), **data}
    )
    assert errors(refused)["file"].startswith("line 7: ")
    headless = "\n".join(line for line in lines if "cache size" not in line and "% " not in line)
    assert (
        "GPU KV cache size"
        in errors(
            api.post(
                f"{URL}/import-vllm-log", {"file": SimpleUploadedFile("v.log", headless.encode()), **data}
            )
        )["kv_tokens"]
    )


def test_a_pool_too_small_for_a_fit_is_an_error_beside_it(api):
    rows = "".join(f"0,0,{b},{c},5.0\n" for b in (2, 4, 8) for c in (100, 300, 900))
    answer = upload(api, csv=STEPS.partition("\n")[0] + "\n" + rows, kv_tokens="250")
    assert "Only 1 of the file's 9 different steps fit" in errors(answer)["kv_tokens"]


def test_a_link_between_hosts_is_kept_with_its_doubt(api):
    with_rows = "".join(f"0,0,{b},{c},5.0\n" for b in (2, 4, 8) for c in (100, 300, 900))
    pk = upload(api, csv=STEPS.partition("\n")[0] + "\n" + with_rows).json()["id"]
    link = {"gigabytes_per_s": 12.5, "latency_us": 20.0, "uncertainty_percent": 20.0, "label": "RoCE"}
    answer = post(api, f"{URL}/{pk}/links", link)
    assert answer.status_code == 200, answer.content
    assert answer.json()["facts"]["transfers"] == [
        {"size_bytes": [1.0], "latency_s": [20e-6], "bytes_per_s": [12.5e9], "label": "entered: RoCE",
         "uncertainty": 0.2, "entered": True, "ranks": 1}
    ]  # fmt: skip
    bad = errors(post(api, f"{URL}/{pk}/links", link | {"gigabytes_per_s": 0.0, "uncertainty_percent": -1.0}))
    assert set(bad) == {"gigabytes_per_s", "uncertainty_percent"}
    Calibration.objects.filter(pk=pk).update(status=Calibration.DONE)
    assert api.get(f"{URL}/{pk}/document").json()["content"]["transfers"][0]["label"] == "entered: RoCE"
