"""A bundle of parts: who takes what, what is left to others, and in threads as in one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import bundles
from planner.bundles import Bundle, work_through
from planner.search.evaluate import Stopped


def bundle(parts: int, first: int = 10) -> Bundle:
    return Bundle(first, [{"of": number} for number in range(first, first + parts)])


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 20))
def test_every_part_is_somebodys_once(turns: list[bool], parts: int) -> None:
    """Whoever takes parts, and whenever the rest is halved."""
    mine, others = bundle(parts), []
    mine.longest_s = 1.0
    taken = []
    for halves in turns:
        if halves:
            others += [rest] if (rest := mine.halve()) else []
        elif (position := mine.take()) is not None:
            taken.append(mine.parts[position]["of"])
    while (position := mine.take()) is not None:
        taken.append(mine.parts[position]["of"])
    assert taken == [10 + number for number in range(mine.stop)]
    left = [part["of"] for rest in reversed(others) for part in rest.parts]
    assert taken + left == list(range(10, 10 + parts))
    assert [rest.first for rest in others] == [rest.parts[0]["of"] for rest in others]


def test_what_takes_less_than_sharing_it_is_kept() -> None:
    mine = bundle(8)
    mine.longest_s = bundles.PAYS_S / 5
    assert mine.halve() is None
    mine.longest_s = bundles.PAYS_S / 4
    rest = mine.halve()
    assert rest is not None
    assert (mine.stop, rest.first, len(rest.parts)) == (4, 14, 4)


def test_who_has_worked_for_long_lets_go_of_all_that_is_left() -> None:
    mine = bundle(5)
    mine.longest_s = 1.0
    mine.take()
    mine.began_s -= 2 * bundles.LONGEST_S
    rest = mine.halve()
    assert rest is not None
    assert (rest.first, len(rest.parts)) == (11, 4)
    assert mine.take() is None


@pytest.mark.parametrize("threads", [1, 3])
def test_all_that_is_kept_is_answered_and_what_is_stopped_is_none(threads: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(bundles, "LOOK_EVERY_S", 0.0)
    mine, rests = bundle(12), []

    def do(part: Any) -> Any:
        if part["of"] == 11:
            raise Stopped
        return [part["of"]]

    def look_up() -> None:
        mine.longest_s = 1.0
        rests.append(mine.halve())

    found = dict(work_through(mine, do, threads, look_up))
    assert found == {number: None if number == 11 else [number] for number in range(10, 10 + mine.stop)}
    assert rests[0] is not None
    assert sum(len(rest.parts) for rest in rests if rest) == 12 - mine.stop


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_out(threads: int) -> None:
    def do(part: Any) -> Any:
        raise IndexError("as if it were broken")

    with pytest.raises(IndexError):
        list(work_through(bundle(5), do, threads, lambda: None))
