"""The accuracy page shows what was written by commands and jobs, and nothing that was typed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from django.core.management import call_command

from planner.models import Verification
from planner.reference_checks import CHECKS, Reference, checksums, read_results, write_results

REPOSITORY = Path(__file__).resolve().parents[2]
COMMITTED = REPOSITORY / "docs" / "reference-results.json"


@pytest.mark.django_db
def test_page_and_api_show_every_verification_that_is_done(owner_client, verification):
    page = owner_client.get("/accuracy/").content.decode()
    line = verification.result["lines"][0]
    assert line["label"] in page and "as predicted" in page
    body = owner_client.get("/api/v1/accuracy").json()
    assert (body["count"], body["holding"]) == (1, 1)
    shown = body["verifications"][0]["lines"][0]
    assert shown["measured_s"] == line["measured_s"] and shown["error"] == line["error"]
    assert (shown["spread"], body["cut_short"]) == (line["spread"], 0)
    Verification.objects.update(status=Verification.CANCELLED)
    body = owner_client.get("/api/v1/accuracy").json()
    assert (body["count"], body["cut_short"]) == (0, 1), "it is counted, not shown"
    page = owner_client.get("/accuracy/").content.decode()
    assert "No plan was verified yet" in page and "1 more broke off or was stopped" in page


@pytest.mark.django_db
def test_long_prompts_beside_short_answers_are_shown_by_how_they_were_served(owner_client, verification):
    line = verification.result["lines"][0] | {"metric": "itl"}
    lines = [line | {"percentile": p, "label": f"ITL p{p:g}"} for p in (50.0, 95.0, 99.0)]
    case = {"prompt_tokens": 200, "output_tokens": 64, "streams": 4}
    served = [case | {"way": way, "lines": lines} for way in ("whole", "separate pools")]
    served.append(case | {"streams": 8, "way": "whole", "lines": lines})  # of the grid: on its own page
    Verification.objects.update(kind=Verification.MIXED_LOAD, result={"lines": [], "served": served})
    [shown] = owner_client.get("/api/v1/accuracy").json()["verifications"]
    assert [line["label"] for line in shown["lines"]] == [
        "ITL p95, whole", "ITL p99, whole", "ITL p95, separate pools", "ITL p99, separate pools",
    ]  # fmt: skip
    assert "ITL p99, separate pools" in owner_client.get("/accuracy/").content.decode()
    served[0]["lines"] = [lines[0] | {"holds": False}, *lines[1:]]  # why the run is not as predicted
    Verification.objects.update(result={"lines": [], "served": served})
    [shown] = owner_client.get("/api/v1/accuracy").json()["verifications"]
    assert [line["label"] for line in shown["lines"]][:2] == ["ITL p50, whole", "ITL p95, whole"]


@pytest.mark.django_db
def test_others_verifications_are_not_shown(outsider_client, verification):
    assert outsider_client.get("/api/v1/accuracy").json()["count"] == 0
    assert verification.plan.name not in outsider_client.get("/accuracy/").content.decode()


def test_the_committed_results_were_written_by_the_command():
    stored = {row.name: row for row in read_results(COMMITTED)}
    assert set(stored) == {check.name for check in CHECKS}, "manage.py reference_results writes them"
    for check in CHECKS:
        row = stored[check.name]
        assert row.command == " ".join(["manage.py", *check.arguments]) and row.title == check.title
        assert row.figures and row.commit and row.date and row.cpu_s > 0
        assert [file["file"] for file in row.data] == list(check.files)
        judged = [figure["holds"] for figure in row.figures if figure["holds"] is not None]
        assert row.holds == (row.exit_code == 0) and (row.holds or not all(judged) or row.exit_code == 1)


def test_their_data_is_the_data_that_is_here(reference_data):
    for row in read_results(COMMITTED):
        assert row.data == checksums(reference_data, tuple(file["file"] for file in row.data)), row.name


@pytest.mark.django_db
def test_the_page_renders_what_the_file_says(owner_client, settings, tmp_path):
    settings.REFERENCE_RESULTS = tmp_path / "results.json"
    assert "No reference results" in owner_client.get("/accuracy/").content.decode()
    row = Reference(
        "fit-40", "A <b>title</b>", "Step times", "manage.py fit_check x", "2026-01-02", "abc123", 1, 3.25,
        [{"file": "x", "bytes": 3, "sha256": "00"}],
        [{"name": "median", "value": 0.0212, "unit": "share", "bar": 0.023, "holds": True},
         {"name": "p90", "value": 0.0812, "unit": "share", "bar": 0.075, "holds": False}],
    )  # fmt: skip
    write_results(settings.REFERENCE_RESULTS, [row])
    page = owner_client.get("/accuracy/").content.decode()
    assert "below its bars" in page and "manage.py fit_check x" in page and "abc123" in page
    assert "&lt;b&gt;title" in page and "missed" in page
    assert owner_client.get("/api/v1/accuracy").json()["reference"][0]["figures"][1]["value"] == 0.0812
    settings.REFERENCE_RESULTS.write_text("{broken")
    assert owner_client.get("/accuracy/").status_code == 200


def test_the_command_runs_what_it_says_and_keeps_the_rest(tmp_path, monkeypatch, capsys):
    """On a recording of one case made here: the real command, run for real."""
    from planner.management.commands import reference_results
    from planner.reference_checks import Check, Figure

    (tmp_path / "some").mkdir()
    file = tmp_path / "some" / "file.txt"
    file.write_text("x")
    good = Check("good", "t", "g", ("model", "demo"), ("some/file.txt",),
                 lambda answer: [Figure("parameters", answer["parameters"], "parameters")])  # fmt: skip
    monkeypatch.setattr(reference_results, "CHECKS", (good,))
    out = tmp_path / "out.json"
    call_command("reference_results", data=tmp_path, out=out, only=None, json=True)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["holds"] == {"good": True}
    [row] = read_results(out)
    assert row.figures[0]["value"] > 1e6 and row.command == "manage.py model demo"
    assert row.data == [{"file": "some/file.txt", "bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}]
