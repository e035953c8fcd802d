"""Turns: one what-if of a user at a time, the newest first; a place among all users."""

from __future__ import annotations

import threading

import pytest

from planner import what_if_turns
from planner.what_if_turns import Busy, Overtaken, turn


def test_a_newer_one_overtakes_who_runs_and_gets_the_turn(tmp_path) -> None:
    overtaken_seen, inside, got = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with turn("u", folder=tmp_path) as overtaken:
            inside.set()
            while not overtaken():
                pass
            overtaken_seen.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with turn("u", wait_s=10.0, folder=tmp_path) as overtaken:
        got.set()
        assert not overtaken()
    thread.join(10)
    assert overtaken_seen.is_set() and got.is_set()


def test_who_waits_gives_up_for_a_newer_one(tmp_path) -> None:
    outcome: list[str] = []
    ticket = tmp_path / "u.ticket"

    def second() -> None:
        try:
            with turn("u", wait_s=30.0, folder=tmp_path):
                outcome.append("had a turn")
        except Overtaken:
            outcome.append("overtaken")

    with turn("u", folder=tmp_path):
        own = ticket.read_text()
        thread = threading.Thread(target=second)
        thread.start()
        while ticket.read_text() == own:  # until the second has drawn its ticket
            assert thread.is_alive()
        with pytest.raises(Busy), turn("u", wait_s=0.0, folder=tmp_path):
            pass
        thread.join(10)
    assert outcome == ["overtaken"]


def test_all_places_taken_is_busy_for_another_user(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(what_if_turns, "most_at_once", lambda: 1)
    with turn("one", folder=tmp_path), pytest.raises(Busy), turn("another", wait_s=0.0, folder=tmp_path):
        pass
    with turn("another", wait_s=0.0, folder=tmp_path):
        pass


def test_two_users_have_their_turns_side_by_side(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(what_if_turns, "most_at_once", lambda: 2)
    with turn("one", folder=tmp_path) as first, turn("another", wait_s=0.0, folder=tmp_path) as second:
        assert not first() and not second()


def test_an_error_inside_frees_the_turn(tmp_path) -> None:
    with pytest.raises(RuntimeError), turn("u", folder=tmp_path):
        raise RuntimeError
    with turn("u", wait_s=0.0, folder=tmp_path):
        pass
