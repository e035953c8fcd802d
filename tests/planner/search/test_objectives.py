"""Objectives: what is read, what is refused and with which field, and when a percentile is claimed."""

import pytest

from planner.search.objective_text import parse_objective, parse_objectives
from planner.search.objectives import MAX_OBJECTIVES, Objective, ObjectiveError, label_of_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft:p95:1.0", Objective("ttft", 95.0, 1.0)),
        ("e2e:p50:12345.6789", Objective("e2e", 50.0, 12345.6789)),  # stored as asked, not rounded
        ("ITL:P99.9:0.05", Objective("itl", 99.9, 0.05)),
        (" tpot : 50 : 2e-2 ", Objective("tpot", 50.0, 0.02)),
        ("e2e:p0.5:30", Objective("e2e", 0.5, 30.0)),
        ("chat=ttft:p95:1", Objective("ttft", 95.0, 1.0, "chat")),
        (" a:b=c = itl:99:0.1", Objective("itl", 99.0, 0.1, "a:b=c")),
        ("goodput:p99:tpot=0.05+ttft=1", Objective.goodput(99.0, {"ttft": 1.0, "tpot": 0.05})),
        ("batch=GOODPUT:90: E2E = 60", Objective.goodput(90.0, {"e2e": 60.0}, "batch")),
    ],
)
def test_reads(text: str, expected: Objective) -> None:
    assert parse_objective(text) == expected
    assert parse_objective(expected.spec) == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("ttft:p95", "objective"),
        ("", "objective"),
        ("ttft:p95:1:2", "objective"),
        ("latency:p95:1", "metric"),
        (":p95:1", "metric"),
        ("ttft:p100:1", "percentile"),
        ("ttft:p0:1", "percentile"),
        ("ttft:p0.0:1", "percentile"),
        ("ttft:p-5:1", "percentile"),
        ("ttft:p101:1", "percentile"),
        ("ttft:pnan:1", "percentile"),
        ("ttft:mean:1", "percentile"),
        ("ttft:p99.99999:1", "percentile"),
        ("ttft:p95:0", "limit"),
        ("ttft:p95:-1", "limit"),
        ("ttft:p95:nan", "limit"),
        ("ttft:p95:inf", "limit"),
        ("ttft:p95:1e400", "limit"),
        ("ttft:p95:1_0", "limit"),
        ("ttft:p95:1e9", "limit"),
        ("ttft:p95:one", "limit"),
        ("ttft:p95:", "limit"),
        ("=ttft:p95:1", "request_class"),
        ("a:ttft:p95:1", "objective"),
        ("goodput:p99:1", "limit"),
        ("goodput:p99:", "limit"),
        ("goodput:p99:ttft=1+ttft=2", "limit"),
        ("goodput:p99:ttft=0", "limit"),
        ("goodput:p99:speed=1", "metric"),
        ("goodput:p100:ttft=1", "percentile"),
    ],
)
def test_refuses_beside_the_field(text: str, field: str) -> None:
    with pytest.raises(ObjectiveError) as caught:
        parse_objective(text)
    assert caught.value.field == field
    assert caught.value.message


def test_none_and_duplicates_are_refused() -> None:
    for texts in ([], ["ttft:p95:1", "itl:p99:1", "TTFT:95:2"]):
        with pytest.raises(ObjectiveError) as caught:
            parse_objectives(texts)
        assert caught.value.field == "objectives"
    assert len(parse_objectives(["ttft:p95:1", "ttft:p99:2", "chat=ttft:p95:1"])) == 3
    many = [f"ttft:p{p}:1" for p in range(50, 51 + MAX_OBJECTIVES)]
    assert len(parse_objectives(many[:-1])) == MAX_OBJECTIVES
    with pytest.raises(ObjectiveError, match="at most 16"):
        parse_objectives(many)


def test_an_objective_can_be_said_and_its_key_read_again() -> None:
    own = Objective.goodput(99.0, {"tpot": 0.05, "ttft": 1.0}, "chat")
    assert own.goal == "TTFT <= 1 s and TPOT <= 50 ms for 99 % of requests of class chat"
    assert own.key == "chat=goodput:p99"
    for o in (own, Objective("itl", 99.9, 0.1, "a=b:c"), Objective("e2e", 50.0, 3.0)):
        assert label_of_key(o.key) == o.label
    assert Objective("itl", 99.0, 0.05).goal == "ITL p99 <= 50 ms"


def test_a_percentile_needs_samples_above_it() -> None:
    p99 = Objective("ttft", 99.0, 1.0)
    assert p99.samples_needed == 299
    assert not p99.claimable(71, 71)
    assert p99.claimable(299, 299)
    assert Objective("ttft", 50.0, 1.0).samples_needed == 5


def test_many_gaps_of_few_requests_do_not_carry_a_tail() -> None:
    itl = Objective("itl", 99.0, 1.0)
    assert not itl.claimable(50_000, 20)
    assert itl.claimable(50_000, 59)
    assert Objective("itl", 50.0, 1.0).claimable(500, 5)


def test_margin_is_a_share_of_the_limit() -> None:
    assert Objective("itl", 99.0, 0.1).margin(0.071) == pytest.approx(0.29)
    assert Objective("itl", 99.0, 0.1).margin(0.2) == pytest.approx(-1.0)
