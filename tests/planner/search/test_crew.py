"""One search, whoever works on it: parts are JSON, go to anybody, come back in any order, and the plan is the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from planner.search import Conditions, Link, PlanResult, SearchSpace, parse_objectives, prepare, search
from planner.search.combinations import Candidate
from planner.search.crew import DRAW, LOAD, Answers, Crew, Do, Evaluated, Part, in_threads
from planner.search.evaluate import Stopped
from planner.search.parts import Hand
from planner.search.prepare import Prepared
from planner.search.steps import FINALISTS, STAGES, Standing
from planner.traffic import Traffic

Ready = Callable[..., Prepared]


@pytest.fixture
def ready(traffic: Callable[..., Traffic], model: Any, architecture: Architecture) -> Ready:
    def made(*objectives: str, **options: Any) -> Prepared:
        space = SearchSpace((256, 1024), (0,), (16, 64), max_replicas=3)
        link = Link.entered(20.0, 0.001)
        options = {"conditions": Conditions(link=link), "refits": 3, "max_model_len": 8192} | options
        goals = parse_objectives(objectives or ("ttft:p95:0.2", "itl:p99:0.06"))
        return prepare(
            traffic(requests=240, rate_per_s=9.0), model, 40_000, architecture, goals, space, **options
        )

    return made


def by_workers(hands: Sequence[Hand], lost: int = 0) -> Do:
    """Each part goes, as JSON, to a hand of its own choosing and its answer comes back as JSON. The first `lost`
    answers of every stage never arrive: another hand does those parts again."""

    def do(parts: Sequence[Part]) -> Iterator[Answers | None]:
        order = np.random.default_rng(len(parts)).permutation(len(parts))
        found: dict[int, Answers | None] = {}
        mislaid = len(order[:lost])
        for turn, number in enumerate([*order[:lost], *order]):
            hand = hands[turn % len(hands)]
            try:
                answers = hand.do(json.loads(json.dumps(parts[number])))
            except Stopped:
                found[number] = None
                continue
            text = json.dumps([answer.to_dict() for answer in answers], default=lambda value: value.item())
            if turn >= mislaid:
                found[number] = [Evaluated.from_dict(each) for each in json.loads(text)]
        yield from (found[number] for number in range(len(parts)))

    return do


def as_json(result: PlanResult) -> str:
    return json.dumps(result.to_dict(), allow_nan=False, sort_keys=True)


def test_one_worker_or_four_the_same_plan(ready: Ready) -> None:
    """Also with an infeasible question, and with workers that are lost: every hand is made from the inputs anew."""
    questions = (("ttft:p95:0.2", "itl:p99:0.06"), ("ttft:p95:0.02",), ("goodput:p90:ttft=0.3+itl=0.06",))
    for objectives in questions:
        alone = search(ready(*objectives), by_workers([ready(*objectives).hand]))
        four = [ready(*objectives).hand for _ in range(4)]
        assert as_json(alone) == as_json(search(ready(*objectives), by_workers(four)))
        assert as_json(alone) == as_json(search(ready(*objectives), by_workers(four, lost=2)))
        kinds = {candidate.pools is not None for candidate in alone.candidates}
        assert kinds == {True, False}


def test_runs_done_ahead_are_not_done_again_and_fill_up_small_batches(ready: Ready) -> None:
    prepared = ready()
    batches: list[list[Any]] = []

    def do(parts: Sequence[Part]) -> Iterator[Answers | None]:
        batches.append([part["value"] for part in parts])
        return in_threads(prepared.hand.do, 1)(parts)

    crew = Crew(do, prepared.hand.combinations, prepared.hand.pairs)
    one = Candidate(crew.combinations[0].knobs, 1)
    finish = crew.ahead(
        [(one, LOAD, load) for load in (0.5, 0.75, 1.0, 1.25, 1.5)],
        later=[(one, DRAW, draw) for draw in range(3)] + [(one, LOAD, load) for load in (0.5, 1.1)],
    )
    finish()
    ahead = crew.under(one, LOAD, [0.5, 1.5])
    assert batches == [[0.5, 0.75, 1.0, 1.25, 1.5]]
    crew.under(one, LOAD, [0.8])
    drawn = crew.under(one, DRAW, [2, 0])
    assert batches[1:] == [[0.8, 0, 1, 2]]
    fresh = Crew(in_threads(prepared.hand.do, 1), crew.combinations, crew.pairs)
    assert fresh.under(one, LOAD, [0.5, 1.5]) == ahead
    assert fresh.under(one, DRAW, [2, 0]) == drawn


def test_a_stop_ahead_is_met_by_the_question(ready: Ready) -> None:
    prepared = ready()
    stop = False

    def do(parts: Sequence[Part]) -> Iterator[Answers | None]:
        yield from (None for _ in parts) if stop else in_threads(prepared.hand.do, 1)(parts)

    crew = Crew(do, prepared.hand.combinations)
    one = Candidate(crew.combinations[0].knobs, 1)
    crew.ahead([(one, LOAD, 1.0)])()
    stop = True
    crew.ahead([(one, LOAD, 1.5)])()
    assert len(crew.under(one, LOAD, [1.0])) == 1
    with pytest.raises(Stopped):
        crew.under(one, LOAD, [1.5])


def test_what_is_known_so_far_is_told_while_the_search_goes_on(ready: Ready) -> None:
    told: list[PlanResult] = []
    prepared = ready("ttft:p95:0.2", "itl:p99:0.06")
    result = search(prepared, by_workers([prepared.hand]), on_partial=lambda so_far: told.append(so_far()))
    assert result.complete
    assert not result.searching
    assert result.verdict.choice is not None
    assert all(each.searching and not each.complete for each in told)
    assert not told[0].feasible, "one replica is not enough here"
    assert "so far, on 1 replica" in told[0].verdict.sentence
    assert told[0].verdict.closest is not None
    best = told[-1].verdict.choice
    assert best is not None
    assert best.candidate == result.verdict.choice.candidate
    assert best.refits == 0, "nothing is known yet of how sure it is"
    assert best.predictions[0].predicted_s == result.verdict.choice.predictions[0].predicted_s
    assert any("Not everything has been tried" in remark for remark in best and told[-1].verdict.remarks)
    json.dumps(told[0].to_dict(), allow_nan=False)


def test_progress_never_falls_and_ends_at_its_total(ready: Ready) -> None:
    seen: list[tuple[int, int]] = []
    prepared = ready()
    search(
        prepared, by_workers([prepared.hand]), on_progress=lambda done, total, _: seen.append((done, total))
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]
    assert seen[-2][0] < seen[-2][1], "it is not done before its last step is"


def test_what_is_left_falls_stage_by_stage_to_nothing(ready: Ready) -> None:
    told: list[Standing] = []
    prepared = ready()
    search(prepared, by_workers([prepared.hand]), on_standing=told.append)
    for stage in range(STAGES):
        left = [standing.left[stage] for standing in told]
        worked = [standing.worked[stage] for standing in told]
        own = [standing for standing in told if standing.stage == stage]
        assert left == sorted(left, reverse=True)
        assert worked == sorted(worked)
        assert worked[-1] > 0
        assert own
        assert all(standing.at_most == (stage != FINALISTS) for standing in own)
        assert told[-1].cpu_s[stage] > 0.0
    assert [standing.stage for standing in told] == sorted(standing.stage for standing in told)
    assert told[-1].left == (0, 0, 0)
    assert told[-1].whole_s > 0.0


def test_a_stopped_search_says_so_wherever_it_is_stopped(ready: Ready) -> None:
    for after in (0, 3, 30, 60):
        asked = iter(range(1_000_000))
        prepared = ready(should_stop=lambda asked=asked, after=after: next(asked) >= after)  # type: ignore[misc]
        result = search(prepared, by_workers([prepared.hand]))
        assert result.stopped
        assert not result.searching


def test_work_is_offered_before_what_is_known_is_told(ready: Ready) -> None:
    """Helpers work at the next batch while the plan's own process makes the answer so far."""
    prepared = ready()
    happened: list[str] = []

    def do(parts: Sequence[Part]) -> Iterator[Answers | None]:
        happened.append("offered")
        return in_threads(prepared.hand.do, 1)(parts)

    search(prepared, do, on_partial=lambda so_far: happened.append("told"))
    assert happened.index("told") >= 2
    assert "told" in happened[happened.index("told") + 1 :], "not the answer alone"
