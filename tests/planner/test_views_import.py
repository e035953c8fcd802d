"""Pages of bringing a file: the mapping page, held files, what a benchmark's result shows, large files."""

from __future__ import annotations

import csv
import gzip
import io
import os
import stat
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from planner import import_work, services, tasks, uploads
from planner.models import HeldUpload, TrafficImport, TrafficSet

pytestmark = pytest.mark.django_db
NEW = reverse("planner:traffic_new")
STRANGE = "when;sent;got;said\n0,5;10;20;<b>hello</b>\n1,5;11;21;you\n3,5;12;22;there\n"
CHOICE = {"column_time": "when", "column_prompt": "sent", "column_output": "got"}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04,3180,8\n"


@pytest.fixture(autouse=True)
def data_folder(settings, tmp_path) -> Path:
    settings.DATA_DIR = tmp_path
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "incoming"
    settings.FILE_UPLOAD_TEMP_DIR.mkdir()
    return tmp_path


def file_of(content: str | bytes, name: str = "mine.csv") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content.encode() if isinstance(content, str) else content)


def held_page(client, content: str | bytes = STRANGE) -> str:
    answer = client.post(NEW, {"file": file_of(content)})
    assert answer.status_code == 302, answer.content.decode()[-3000:]
    return answer.url


# The mapping page --------------------------------------------------------------------------------------------------


def test_what_is_not_recognised_goes_to_the_mapping_page_and_is_imported_from_there(owner_client) -> None:
    url = held_page(owner_client)
    page = owner_client.get(url).content.decode()
    assert "How to read mine.csv" in page
    assert "&lt;b&gt;hello&lt;/b&gt;" in page
    assert "say which they are" in page
    preview = owner_client.post(url + "preview", CHOICE).content.decode()
    assert "3 requests over" in preview
    assert "Peak minute" in preview
    answer = owner_client.post(url, {**CHOICE, "name": "named"})
    row = TrafficSet.objects.get()
    assert answer.url == reverse("planner:traffic_detail", args=[row.pk])
    assert row.name == "named"
    assert services.traffic_of(row).arrival_s.tolist() == [0.0, 1.0, 3.0]
    assert not HeldUpload.objects.exists()
    assert list(uploads.folder().iterdir()) == []
    assert owner_client.get(url).status_code == 404


def test_nothing_of_a_texts_is_stored(owner_client) -> None:
    owner_client.post(held_page(owner_client), CHOICE)
    row = TrafficSet.objects.get()
    assert b"hello" not in bytes(row.arrays.npz)
    assert "hello" not in f"{row.recipe} {row.warnings} {row.statistics}"


def test_every_answer_changes_what_it_becomes(owner_client) -> None:
    url = held_page(owner_client) + "preview"

    def shown(**more: str) -> str:
        return owner_client.post(url, {**CHOICE, **more}).content.decode()

    assert "over 3\xa0min" in shown(time_unit="min")
    assert "arrivals are drawn" in shown(column_time="(none)", rate_per_s="2")
    assert "give a rate" in shown(column_time="(none)")
    assert "mapped twice" in shown(column_prompt="got")
    assert "see the fields marked" in shown(time_unit="weeks")
    assert 'hx-swap-oob="true"' in shown()
    assert ">column 1<" in owner_client.post(url, {"header": "no"}).content.decode()


def test_what_is_wrong_stays_on_the_page_with_its_values(owner_client) -> None:
    url = held_page(owner_client, STRANGE.replace("11", "x"))
    answer = owner_client.post(url, {**CHOICE, "name": "kept"})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "line 3, column sent" in page
    assert 'value="kept"' in page
    assert HeldUpload.objects.count() == 1


def test_a_recognised_file_can_be_looked_at_first(owner_client) -> None:
    answer = owner_client.post(NEW, {"file": file_of(AZURE), "look": "1"})
    page = owner_client.get(answer.url).content.decode()
    assert "2 requests over" in page
    assert not TrafficSet.objects.exists()
    assert owner_client.post(answer.url, {}).status_code == 302
    assert TrafficSet.objects.get().format == "azure"


def test_a_refused_file_offers_to_be_read_otherwise(owner_client) -> None:
    answer = owner_client.post(
        NEW, {"file": file_of("timestamp;input_length;output_length\n0;1.200;3\n1;5;6\n")}
    )
    assert answer.status_code == 422
    held = HeldUpload.objects.get()
    url = reverse("planner:traffic_upload", args=[held.pk])
    assert url in answer.content.decode()
    assert owner_client.post(url, {"thousands": "."}).status_code == 302
    assert services.traffic_of(TrafficSet.objects.get()).prompt_tokens.tolist() == [1200, 5]


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"PK\x03\x04zip"])
def test_what_no_mapping_can_settle_is_not_kept(content: bytes, owner_client) -> None:
    assert owner_client.post(NEW, {"file": file_of(content)}).status_code == 422
    assert not HeldUpload.objects.exists()
    assert not list(uploads.folder().iterdir())


def test_a_benchmarks_result_is_refused_with_what_it_shows(owner_client) -> None:
    text = '{"request_latency_mean_s": 1.0213, "ttft_mean_s": 0.0505, "output_len_mean": 62.3, "tpot_mean_s": 0.007516}'
    answer = owner_client.post(NEW, {"file": file_of(text)})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "What this result of a benchmark shows" in page
    assert "a factor of 2.1" in page
    assert not HeldUpload.objects.exists()


# Held files --------------------------------------------------------------------------------------------------------


def test_a_held_file_is_its_owners_alone(owner_client, member_client, data_folder) -> None:
    url = held_page(owner_client)
    (path,) = uploads.folder().iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(uploads.folder().stat().st_mode) == 0o700
    assert "mine" not in path.name
    assert member_client.get(url).status_code == 404
    assert member_client.post(url + "preview", CHOICE).status_code == 404
    assert "mine.csv" not in member_client.get(NEW).content.decode()
    assert "mine.csv" in owner_client.get(NEW).content.decode()


def test_its_owner_can_delete_it(owner_client) -> None:
    url = held_page(owner_client)
    assert owner_client.post(url + "delete").status_code == 302
    assert not HeldUpload.objects.exists()
    assert not list(uploads.folder().iterdir())


def test_only_the_newest_few_wait(owner_client) -> None:
    for _ in range(uploads.MOST_HELD + 2):
        held_page(owner_client)
    assert HeldUpload.objects.count() == len(list(uploads.folder().iterdir())) == uploads.MOST_HELD


def test_the_sweep_deletes_what_expired_and_what_nobody_knows(owner_client, data_folder, settings) -> None:
    held_page(owner_client)
    held_page(owner_client)
    old = HeldUpload.objects.last()
    HeldUpload.objects.filter(pk=old.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    before_s = time.time() - 7_200
    for name in ("interrupted.part", "0" * 32):
        (uploads.folder() / name).write_bytes(b"half")
        os.utime(uploads.folder() / name, (before_s, before_s))
    (settings.FILE_UPLOAD_TEMP_DIR / "x.upload").write_bytes(b"half")
    os.utime(settings.FILE_UPLOAD_TEMP_DIR / "x.upload", (before_s, before_s))
    (uploads.folder() / "fresh.part").write_bytes(b"on its way")
    tasks.sweep_imports()
    left = {path.name for path in uploads.folder().iterdir()}
    assert left == {HeldUpload.objects.get().pk.hex, "fresh.part"}
    assert not list(settings.FILE_UPLOAD_TEMP_DIR.iterdir())


def test_an_upload_that_breaks_off_leaves_nothing(project, owner, monkeypatch) -> None:
    def broken(self, size=None):
        yield b"half"
        raise OSError("gone")

    monkeypatch.setattr(SimpleUploadedFile, "chunks", broken)
    with pytest.raises(OSError, match="gone"):
        uploads.hold(project, owner, file_of(STRANGE), "mine.csv")
    assert not HeldUpload.objects.exists()
    assert not list(uploads.folder().iterdir())


def test_the_original_is_kept_when_its_owner_says_so(owner_client, viewer_client) -> None:
    owner_client.post(NEW, {"file": file_of(AZURE, "a.csv"), "keep_file": "on"})
    row = TrafficSet.objects.get()
    held = HeldUpload.objects.get()
    assert held.expires_at is None
    url = reverse("planner:traffic_detail", args=[row.pk])
    original = reverse("planner:traffic_upload_file", args=[held.pk])
    assert original in owner_client.get(url).content.decode()
    assert original not in viewer_client.get(url).content.decode()
    answer = owner_client.get(original)
    assert b"".join(answer).decode() == AZURE
    assert "attachment" in answer["Content-Disposition"]
    tasks.sweep_imports()
    assert HeldUpload.objects.exists()
    owner_client.post(reverse("planner:traffic_upload_delete", args=[held.pk]))
    assert not list(uploads.folder().iterdir())


# Large files: a job ------------------------------------------------------------------------------------------------


@pytest.fixture
def large(settings) -> None:
    settings.IMMEDIATE_IMPORT_BYTES = 50


def test_a_large_file_is_read_by_a_worker(large, owner_client, no_broker) -> None:
    packed = file_of(gzip.compress(AZURE.encode(), mtime=0), "a.csv.gz")
    answer = owner_client.post(NEW, {"file": packed, "max_model_len": "4000"})
    job = TrafficImport.objects.get()
    assert answer.url == reverse("planner:import_detail", args=[job.pk])
    assert job.sent_at is not None
    assert job.options == {"max_model_len": 4000, "default_named": True}
    assert "Waiting for a worker" in owner_client.get(answer.url).content.decode()
    tasks.run_import(str(job.pk))
    job.refresh_from_db()
    assert (job.status, job.error) == ("done", "")
    assert job.traffic.statistics["requests"] == 1
    assert "2 rows read" in job.log
    assert not list(uploads.folder().iterdir())
    assert (
        reverse("planner:traffic_detail", args=[job.traffic_id])
        in owner_client.get(answer.url).content.decode()
    )
    assert owner_client.get(answer.url + "status").status_code == 286


def test_a_job_that_finds_errors_says_them_and_keeps_the_file_for_its_owner(
    large, owner_client, member_client, no_broker, monkeypatch
) -> None:  # fmt: skip
    monkeypatch.setattr("planner.traffic.look.HEAD_BYTES", 100)  # the first part is in order
    url = owner_client.post(NEW, {"file": file_of(AZURE + "x,1,2\n" * 9)}).url
    job = TrafficImport.objects.get()
    tasks.run_import(str(job.pk))
    job.refresh_from_db()
    assert job.status == "failed"
    assert len(job.problems) == 9
    page = owner_client.get(url).content.decode()
    assert "line 4, column TIMESTAMP" in page
    assert "Say how to read it" in page
    assert "Say how to read it" not in member_client.get(url).content.decode()
    assert owner_client.post(url + "rerun").status_code == 302
    assert TrafficImport.objects.count() == 2


def test_a_cancelled_job_stores_nothing(large, owner_client, no_broker) -> None:
    url = owner_client.post(NEW, {"file": file_of(AZURE)}).url
    owner_client.post(url + "cancel")
    tasks.run_import(str(TrafficImport.objects.get().pk))
    assert TrafficImport.objects.get().status == "cancelled"
    assert not TrafficSet.objects.exists()


def test_a_job_whose_worker_vanished_tells_the_truth(large, owner_client, no_broker) -> None:
    url = owner_client.post(NEW, {"file": file_of(AZURE)}).url
    silent = timezone.now() - timedelta(seconds=60)
    TrafficImport.objects.update(status="running", heartbeat_at=silent, started_at=silent)
    assert "stopped answering" in owner_client.get(url).content.decode()
    assert HeldUpload.objects.count() == 1, "it can be run again"
    assert owner_client.post(url + "rerun").status_code == 302


def test_a_job_whose_file_has_gone_is_refused_in_words(large, owner_client, no_broker) -> None:
    owner_client.post(NEW, {"file": file_of(AZURE)})
    job = TrafficImport.objects.get()
    uploads.delete(HeldUpload.objects.get())
    tasks.run_import(str(job.pk))
    job.refresh_from_db()
    assert (job.status, job.error) == ("failed", import_work.FILE_GONE)


def test_the_large_mapped_file_becomes_a_job_too(large, owner_client, no_broker) -> None:
    rows = "".join(f"{i};1;2;x\n" for i in range(100))
    url = held_page(owner_client, "when;sent;got;said\n" + rows)
    answer = owner_client.post(url, CHOICE)
    job = TrafficImport.objects.get()
    assert answer.url == reverse("planner:import_detail", args=[job.pk])
    tasks.run_import(str(job.pk))
    assert TrafficSet.objects.get().statistics["requests"] == 100


def test_findings_say_what_kind_they_are(owner_client) -> None:
    rows = list(csv.reader(io.StringIO("0,10,5\n2,10,0\n1,10,5\n")))
    content = "time_s,prompt_tokens,output_tokens\n" + "".join(",".join(row) + "\n" for row in rows)
    page = owner_client.post(NEW, {"file": file_of(content)}, follow=True).content.decode()
    assert "<strong>Excluded.</strong>" in page
    assert "<strong>Repaired.</strong>" in page
    assert "3 rows read, 2 requests" in page


@pytest.mark.parametrize(
    "mapping",
    ["prompt=a,prompt=b,output=c", '{"prompt": "a", "prompt": "b", "output": "c"}',
     '{"prompt": "a", "columns": {"prompt": "b", "output": "c"}}', "prompt=a,output=a", "time_unit=s,time_unit=ms"],
)  # fmt: skip
def test_of_two_answers_to_one_question_neither_is_taken(mapping, owner, owner_client, bearer) -> None:
    sent = {"file": file_of("a,b,c\n1,2,3\n4,5,6\n"), "mapping": mapping, "rate_per_s": "1"}
    answer = owner_client.post(NEW, sent)
    assert answer.status_code == 422
    assert "twice" in str(answer.context["form"].errors["mapping"])
    api = Client(headers=bearer(owner)).post(
        "/api/v1/traffic", {**sent, "file": file_of("a,b,c\n1,2,3\n4,5,6\n")}
    )
    assert (api.status_code, api.json()["errors"][0]["field"]) == (422, "mapping")


def test_a_column_chosen_twice_is_told_beside_the_second_choice(owner_client) -> None:
    owner_client.post(NEW, {"file": file_of(STRANGE, "mine.csv")})
    held = HeldUpload.objects.get()
    url = reverse("planner:traffic_upload", args=[held.pk])
    names = owner_client.get(url).context["form"].fields["column_prompt"].choices
    column = names[1][0]
    answer = owner_client.post(url, {"column_prompt": column, "column_output": column})
    assert answer.status_code == 422
    words = f"{column} is mapped twice: it is the prompt length already."
    assert answer.context["form"].errors["column_output"] == [words]
    assert HeldUpload.objects.filter(pk=held.pk).exists()


def test_a_body_that_breaks_off_is_no_file(owner_client) -> None:
    """The client went away in the middle: what had come is whole rows, and is not taken for all of them."""
    rows = "".join(f"{second},{100 + second},7\n" for second in range(500))
    head = (
        '--B\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\nContent-Type: text/csv\r\n\r\n'
        "time,input_tokens,output_tokens\n"
    )
    kind = "multipart/form-data; boundary=B"
    answer = owner_client.generic("POST", NEW, head + rows, content_type=kind)
    assert answer.status_code == 422
    assert not TrafficSet.objects.exists() and not HeldUpload.objects.exists()
    assert (
        owner_client.generic("POST", NEW, head + rows + "\r\n--B--\r\n", content_type=kind).status_code == 302
    )
    assert TrafficSet.objects.get().statistics["requests"] == 500
