"""What commands print for people: units beside the numbers, no more digits than a reader needs."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command


@pytest.mark.django_db
def test_traffic_is_described_with_units() -> None:
    out = io.StringIO()
    call_command("traffic", "demo", stdout=out)
    lines = dict(line.split("  ", 1) for line in out.getvalue().splitlines())
    assert lines["Requests"].strip() == "300"
    assert lines["Rate [1/s]"].strip() == "0.515"
    assert lines["Prompt [tokens]"].strip().startswith("p50 ")
    assert "{" not in out.getvalue()


@pytest.mark.django_db
def test_what_is_undefined_of_a_traffic_is_said_in_words(tmp_path) -> None:
    path = tmp_path / "alike.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,9\n1,5,9\n")
    out = io.StringIO()
    call_command("traffic", str(path), stdout=out)
    lines = dict(line.split("  ", 1) for line in out.getvalue().splitlines() if "  " in line)
    assert lines["Rank correlation"].strip() == "undefined: all prompts, or all outputs, are of one length"
    assert lines["Dispersion"].strip() == "undefined: too short for windows of one length"
    assert "None" not in out.getvalue()


def test_a_model_among_ranks_says_whose_figures_they_are_and_whether_it_can_be() -> None:
    def asked(ranks: int) -> tuple[str, dict]:
        told, figures = io.StringIO(), io.StringIO()
        words = ("model", "llama-3.1-8b", "--tensor-parallel", str(ranks))
        call_command(*words, stdout=told)
        call_command(*words, "--json", stdout=figures)
        return told.getvalue(), json.loads(figures.getvalue())

    alone, figures = asked(1)
    assert "None" not in alone and all(line.split(" ", 1)[1].strip() for line in alone.splitlines())
    assert "ranks" not in alone and figures["runnable"]
    two, figures = asked(2)
    assert "- All figures are of the whole model, not of one of 2 ranks." in two and figures["runnable"]
    three, figures = asked(3)
    assert not figures["runnable"]
    assert "32 attention heads, which do not divide among 3 ranks" in figures["not_runnable_reason"]
    assert figures["not_runnable_reason"] in three


def test_reference_results_without_the_recordings_say_where_to_name_them(tmp_path) -> None:
    with pytest.raises(CommandError, match=r"with --data or REFERENCE_DATA") as caught:
        call_command(
            "reference_results", "--data", str(tmp_path), "--out", str(tmp_path / "x"), stdout=io.StringIO()
        )
    assert caught.value.returncode == 2


def test_a_file_that_is_not_there_is_named_once() -> None:
    with pytest.raises(CommandError, match=r"^/nowhere/file: No such file or directory$"):
        call_command("scheduler_cases", "/nowhere/file", stdout=io.StringIO())
