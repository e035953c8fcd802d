"""What a word means where a command takes a traffic or a calibration: one rule for all of them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from planner import services
from planner.models import Plan, TrafficSet
from planner.traffic import synthesise

pytestmark = pytest.mark.django_db
CSV = "time,prompt_tokens,output_tokens\n" + "".join(f"{i},{100 + i},{1 + i % 9}\n" for i in range(300))
CLIP = {"operations": '[{"op": "clip_lengths", "max_tokens": 50}]'}
TAKES_TRAFFIC: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("traffic",), {}), (("shape",), CLIP), (("fit",), {"arrivals": "poisson", "lengths": "lognormal"}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text(CSV)
    return tmp_path


def run(*words: str, **options: Any) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*words, json=True, user="owner", stdout=out, **options)
    return json.loads(out.getvalue().splitlines()[-1])


def refused(*words: str, **options: Any) -> list[dict[str, str]]:
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*words, json=True, user="owner", stdout=out, **options)
    assert caught.value.returncode == 2
    errors = json.loads(out.getvalue().splitlines()[-1])["errors"]
    assert errors and all(error["message"] for error in errors)
    return errors


@pytest.mark.parametrize(("command", "options"), TAKES_TRAFFIC, ids=["traffic", "shape", "fit"])
def test_a_file_an_id_and_a_name_are_the_same_traffic(command, options, owner, project, here) -> None:
    from planner.traffic import read_traffic

    row = services.create_traffic(project, owner, "mine", read_traffic(here / "trace.csv"))
    answers = [run(*command, word, **options) for word in ("trace.csv", "./trace.csv", str(row.pk), "mine")]
    for answer in answers:
        for key in ("traffic", "recipe", "name", "model", "warnings"):
            answer.pop(key, None)
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(("command", "options"), TAKES_TRAFFIC, ids=["traffic", "shape", "fit"])
def test_what_means_several_things_is_refused_with_all_of_them(
    command, options, owner, project, here
) -> None:
    rows = [
        services.create_traffic(project, owner, "twice", synthesise("demo", requests=5)) for _ in range(2)
    ]
    (here / "twice").write_text(CSV)
    [error] = refused(*command, "twice", **options)
    assert error["field"] == "traffic"
    assert all(str(row.pk) in error["message"] for row in rows) and "./twice" in error["message"]
    services.create_traffic(project, owner, "chat", synthesise("demo", requests=300))
    [error] = refused(*command, "chat", **options)
    assert "preset:chat" in error["message"]
    count = TrafficSet.objects.count()
    assert run("traffic", "preset:chat")["requests"] == 2_000
    assert TrafficSet.objects.count() == count


@pytest.mark.parametrize(("command", "options"), TAKES_TRAFFIC, ids=["traffic", "shape", "fit"])
@pytest.mark.parametrize(
    "word", ["nothing.csv", "./nothing.csv", "preset:none", "00000000-0000-4000-8000-000000000000", ".", ""]
)
def test_what_means_nothing_is_refused_and_stores_nothing(command, options, word, owner, project) -> None:
    refused(*command, word, **options)
    assert not TrafficSet.objects.exists()


def test_what_has_no_end_is_refused_at_once(owner, project, here) -> None:
    assert "not a regular file" in refused("traffic", "/dev/zero")[0]["message"]
    os.mkfifo(here / "pipe")
    # Nobody writes to the pipe: opening it would wait for ever.
    assert "not a regular file" in refused("traffic", "pipe")[0]["message"]
    assert "not a regular file" in refused("shape", "trace.csv", operations="/dev/zero")[0]["message"]


def test_a_file_is_read_as_it_is_needed_and_not_before(owner, project, here, settings) -> None:
    """Ten times the cap, of which nothing but the size is looked at."""
    with (here / "sparse.csv").open("wb") as file:
        file.truncate(10 * settings.MAX_UPLOAD_BYTES)
    errors = refused("traffic", "sparse.csv")
    assert errors[0]["field"] == "file" and "limit" in errors[0]["message"]


def test_another_persons_traffic_has_no_name(owner, project, outsider, here) -> None:
    services.create_traffic(
        outsider.memberships.get().project, outsider, "theirs", synthesise("demo", requests=5)
    )
    refused("shape", "theirs", **CLIP)


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_calibration_is_named_by_the_same_rule(command, published, owner, here) -> None:
    more = {"objective": ["ttft:p95:1"]} if command == "plan" else {}
    (here / published.name).write_text("{}")
    [error] = refused(command, calibration=published.name, traffic="preset:demo", **more)
    assert error["field"] == "calibration" and str(published.pk) in error["message"]
    [error] = refused(command, calibration="nobody", traffic="preset:demo", **more)
    assert error["field"] == "calibration"


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (("plan", "--objective", "ttft:p95:1", "--rate-per-s", "2"), "--rate-per-s"),
        (("plan", "--objective", "ttft:p95:1", "--requests", "20"), "--requests"),
        (("plan", "--objective", "ttft:p95:1", "--max-model-len", "64"), "--max-model-len"),
        (("fit", "--map", "time=t"), "--map"),
        (("traffic", "--time-unit", "ms"), "--time-unit"),
        (("traffic", "--seed", "1"), "--seed"),
    ],
)  # fmt: skip
def test_an_option_for_reading_is_refused_beside_a_stored_traffic(argv, option, published, traffic) -> None:
    command, *rest = argv
    word = (
        ["--traffic", str(traffic.pk), "--calibration", str(published.pk)]
        if command == "plan"
        else [str(traffic.pk)]
    )
    with pytest.raises(
        CommandError, match=f"{option} belongs to reading a file: a stored traffic has been read"
    ) as said:
        call_command(command, *word, *rest, "--user", published.owner.get_username(), stdout=io.StringIO())
    assert said.value.returncode == 2
    assert TrafficSet.objects.count() == 1 and not Plan.objects.exists()


def test_a_preset_is_made_and_not_read() -> None:
    with pytest.raises(CommandError, match="--map belongs to reading a file: a preset is made"):
        call_command("traffic", "demo", "--map", "time=t", stdout=io.StringIO())
    call_command("traffic", "demo", "--seed", "3", "--rate-per-s", "2", stdout=io.StringIO())
