"""What commands print for people: units beside the numbers, no more digits than a reader needs."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command


def test_traffic_is_described_with_units() -> None:
    out = io.StringIO()
    call_command("traffic", "demo", stdout=out)
    lines = dict(line.split("  ", 1) for line in out.getvalue().splitlines())
    assert lines["Requests"].strip() == "300"
    assert lines["Rate [1/s]"].strip() == "0.515"
    assert lines["Prompt [tokens]"].strip().startswith("p50 ")
    assert "{" not in out.getvalue()


def test_a_file_that_is_not_there_is_named_once() -> None:
    with pytest.raises(CommandError, match=r"^/nowhere/file: No such file or directory$"):
        call_command("scheduler_cases", "/nowhere/file", stdout=io.StringIO())
