"""Parts of a plan's search as rows: who does them, what is lost, given back or stopped. Real workers: tests/jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from calibration.jobs import JobRefused, JobRun
from planner import bundles, helpers, sharing, work
from planner.helpers import ReadyHands, help_with
from planner.models import Plan, PlanPart
from planner.search import SearchSpace
from planner.search.crew import Part, in_threads
from planner.search.evaluate import Stopped
from planner.search.parts import Hand
from planner.sharing import SharedSearch

# Helpers ask from threads of their own, with connections of their own, whether to stop: rows must be committed.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def row(make_plan) -> Plan:
    space = SearchSpace((128, 256, 512), (0,), (8, 16), max_replicas=2).to_dict()
    return make_plan(status="running", objectives=["ttft:p95:30", "itl:p99:5"], space=space)


@pytest.fixture(autouse=True)
def compiled(monkeypatch) -> None:
    monkeypatch.setattr(helpers.ready, "is_ready", lambda engine: True)


@pytest.fixture
def hand(row) -> Hand:
    return work.hand_of(row, lambda: False)


def parts_of(hand: Hand) -> list[Part]:
    return [
        {"do": "climb", "of": [number], "rungs": [replicas], "whole_at": replicas}
        for replicas in (1, 2)
        for number in range(len(hand.combinations))
    ]


@pytest.fixture
def shared(row, hand) -> Callable[..., list[Any]]:
    """What the parts come to, shared; ``call`` is what happens before it works itself."""

    def done(call: Callable[[], Any], hand: Hand = hand) -> list[Any]:
        answers = SharedSearch(row, hand, threads=1, helpers=1).do(parts_of(hand))
        call()
        return list(answers)

    return done


def test_a_helper_does_parts_and_the_answers_are_the_same(row, hand, shared) -> None:
    alone = list(in_threads(hand.do, 1)(parts_of(hand)))
    hands = ReadyHands(work.hand_of)
    turns: list[tuple[bool, set[str]]] = []

    def helps() -> None:
        again = help_with(str(row.pk), hands, 2)
        turns.append((again, set(PlanPart.objects.values_list("status", flat=True))))

    assert shared(helps) == alone
    assert turns == [(True, {"done"})], "it did them all and comes again"
    assert not PlanPart.objects.exists()


@pytest.fixture
def eager(monkeypatch) -> None:
    """Whoever works looks up after each part, and leaves what is left however small it is."""
    monkeypatch.setattr(bundles, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(bundles, "PAYS_S", 0.0)


def rows_of(row: Plan) -> list[tuple[int, int]]:
    """First and last part of each row."""
    rows = PlanPart.objects.filter(plan=row).values_list("number", "asked")
    return sorted((number, number + len(json.loads(asked)) - 1) for number, asked in rows)


def test_a_helper_leaves_what_it_has_not_begun_where_nothing_else_is_left(row, hand, shared, eager) -> None:
    before: list[tuple[int, int]] = []

    def helps() -> None:
        before.extend(rows_of(row))
        assert help_with(str(row.pk), ReadyHands(work.hand_of), 1)
        after = rows_of(row)
        assert len(after) > len(before)
        assert [first for first, _ in after[1:]] == [last + 1 for _, last in after[:-1]], "each part once"
        assert (after[0][0], after[-1][1]) == (before[0][0], before[-1][1]), "and all of them"

    assert shared(helps) == list(in_threads(hand.do, 1)(parts_of(hand)))


def test_the_plan_leaves_what_it_has_not_begun_to_a_helper_that_comes_late(row, hand, eager) -> None:
    parts = parts_of(hand)
    answers = SharedSearch(row, hand, threads=1, helpers=1).do(parts)
    PlanPart.objects.filter(plan=row).exclude(number=0).update(status=PlanPart.OWN)  # as if it had begun them
    begun = [next(answers), next(answers)]
    assert (2, 2) in rows_of(row), "of the row of parts 0 to 2"
    PlanPart.objects.filter(plan=row, status=PlanPart.OWN).exclude(number=0).update(status=PlanPart.QUEUED)
    assert help_with(str(row.pk), ReadyHands(work.hand_of), 1)
    assert [*begun, *answers] == list(in_threads(hand.do, 1)(parts))


def test_what_is_left_of_a_row_that_was_taken_for_lost_is_not_shared(row, hand, eager) -> None:
    parts = parts_of(hand)[:4]
    sharing.offer(row, [bundles.Bundle(0, parts)])
    last = helpers._last_open(row)
    key, number, asked = last()
    assert helpers._claimed(key, asked, "me:1")
    assert not helpers._claimed(key, asked, "other:1"), "one has it"
    mine = helpers._Work(row, key, number, asked, "me:1", last)
    PlanPart.objects.update(worker="other:1")
    mine.through(hand, 1)
    assert rows_of(row) == [(0, 3)]
    assert PlanPart.objects.get().answer == "", "it is another's"


def test_a_row_that_has_been_made_smaller_is_not_claimed_as_it_was(row, hand) -> None:
    sharing.offer(row, [bundles.Bundle(0, parts_of(hand)[:4])])
    key, _, asked = helpers._last_open(row)()
    PlanPart.objects.update(asked=json.dumps(parts_of(hand)[:2]))
    assert not helpers._claimed(key, asked, "me:1")


def test_nobody_comes_and_the_plan_is_done_all_the_same(hand, shared) -> None:
    assert shared(lambda: None) == list(in_threads(hand.do, 1)(parts_of(hand)))


def test_parts_of_a_helper_that_fell_silent_are_done_again(row, hand, shared) -> None:
    def dies() -> None:
        silent = timezone.now() - timedelta(seconds=2 * sharing.LOST_AFTER_S)
        firsts = list(PlanPart.objects.filter(plan=row).values_list("number", flat=True))
        taken = PlanPart.objects.filter(plan=row, number__in=(firsts[0], firsts[-1]))
        assert taken.update(status=PlanPart.RUNNING, worker="gone:1", heartbeat_at=silent) == 2

    assert shared(dies) == list(in_threads(hand.do, 1)(parts_of(hand)))


def test_what_a_helper_fails_at_is_given_back(row, hand, shared) -> None:
    class Unready(ReadyHands):
        def of(self, plan: Plan) -> tuple[Hand, JobRun]:
            return Hand(hand.bench), JobRun(plan)  # knows no combinations: every part fails

    def fails() -> None:
        with pytest.raises(IndexError):
            help_with(str(row.pk), Unready(work.hand_of), 1)
        assert set(PlanPart.objects.values_list("status", flat=True)) == {PlanPart.QUEUED}

    assert shared(fails) == list(in_threads(hand.do, 1)(parts_of(hand)))


def test_an_error_of_the_search_itself_is_met_by_the_plan(hand, shared) -> None:
    class Broken(Hand):
        def do(self, part: Part) -> Any:
            if part["of"] == [2]:
                raise IndexError("as if it were broken")
            return super().do(part)

    with pytest.raises(IndexError):
        shared(lambda: None, Broken(hand.bench, hand.combinations))
    assert not PlanPart.objects.exists()


def test_a_stopped_search_stops_with_what_it_has(row, hand, shared) -> None:
    done = 0

    class Stopping(Hand):
        def do(self, part: Part) -> Any:
            nonlocal done
            if done == 3:
                raise Stopped
            done += 1
            return super().do(part)

    found = shared(lambda: None, Stopping(hand.bench, hand.combinations))
    assert [answers is not None for answers in found] == [True] * 3 + [False] * (len(found) - 3)


def test_helpers_are_sent_for_before_the_question_is_made_ready(row, monkeypatch) -> None:
    order: list[str] = []
    prepared = work.prepared
    monkeypatch.setattr(work, "prepared", lambda *of: order.append("prepared") or prepared(*of))
    monkeypatch.setattr(work, "await_simulator", lambda run, plan: None)
    for count in (1, 0):
        work.shared_plan(
            row, JobRun(row), threads=1, helpers=count, call=lambda: order.append("sent for") and None
        )
    assert order == ["sent for", "prepared", "prepared"]
    assert not PlanPart.objects.exists()


def test_a_helper_leaves_a_question_that_cannot_be_asked_to_the_plan(row) -> None:
    def refuses(plan: Plan, should_stop: Callable[[], bool]) -> Hand:
        raise JobRefused("it cannot be asked")

    assert help_with(str(row.pk), ReadyHands(refuses), 1) is False


@pytest.mark.parametrize("parts", [1, 2, 7, 20, 120])
@pytest.mark.parametrize("processes", [2, 3, 5])
def test_bundles_are_large_at_both_ends_and_small_where_the_processes_meet(parts, processes) -> None:
    sizes = bundles.bundle_sizes(parts, processes, 1)
    assert sum(sizes) == parts
    own, helpers = sizes[: -(-len(sizes) // processes)], sizes[-(-len(sizes) // processes) :]
    assert own == sorted(own, reverse=True)
    assert helpers == sorted(helpers)
    assert max(sizes) == -(-parts // (2 * processes))
    assert parts < processes or sizes[len(own) - 1] == 1, "nobody waits for more than one part"


def test_a_bundle_is_not_too_small_for_the_threads() -> None:
    assert min(bundles.bundle_sizes(100, 2, 4)[:-1]) == 4


def test_a_helper_goes_as_the_plan_ends(row, hand, monkeypatch) -> None:
    hands = ReadyHands(work.hand_of)

    def ended(plan: Plan) -> bool:
        Plan.objects.filter(pk=plan.pk).update(status="done")
        return False

    monkeypatch.setattr(helpers, "_runs", ended)
    monkeypatch.setattr(helpers, "IDLE_S", 60.0)
    assert help_with(str(row.pk), hands, 1) is False
    assert not hands._held


def test_a_helper_comes_for_a_running_plan_only(row, hand) -> None:
    hands = ReadyHands(work.hand_of)
    for values in ({"status": "done"}, {"status": "running", "cancel_requested": True}):
        Plan.objects.filter(pk=row.pk).update(**values)
        PlanPart.objects.get_or_create(plan=row, number=0, defaults={"asked": "[]"})
        assert help_with(str(row.pk), hands, 1) is False
        assert PlanPart.objects.get().status == PlanPart.QUEUED


def test_a_machine_that_still_compiles_is_no_help(row, monkeypatch) -> None:
    monkeypatch.setattr(helpers.ready, "is_ready", lambda engine: False)
    PlanPart.objects.create(plan=row, number=0, asked="[]")
    assert help_with(str(row.pk), ReadyHands(work.hand_of), 1) is False
    assert PlanPart.objects.get().status == PlanPart.QUEUED


def test_parts_that_a_dead_plan_left_are_swept(row, no_broker) -> None:
    from planner import tasks

    PlanPart.objects.create(plan=row, number=0, asked="[]")
    tasks.sweep_plans()
    assert PlanPart.objects.count() == 1, "it still runs"
    Plan.objects.filter(pk=row.pk).update(status="interrupted")
    tasks.sweep_plans()
    assert not PlanPart.objects.exists()
