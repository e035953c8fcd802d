"""Objectives: what is read, what is refused and with which field, and when a percentile is claimed."""

import pytest

from planner.search.objectives import Objective, ObjectiveError, parse_objective, parse_objectives


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft:p95:1.0", Objective("ttft", 95.0, 1.0)),
        ("e2e:p50:12345.6789", Objective("e2e", 50.0, 12345.6789)),  # stored as asked, not rounded
        ("ITL:P99.9:0.05", Objective("itl", 99.9, 0.05)),
        (" tpot : 50 : 2e-2 ", Objective("tpot", 50.0, 0.02)),
        ("e2e:p0.5:30", Objective("e2e", 0.5, 30.0)),
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
    assert len(parse_objectives(["ttft:p95:1", "ttft:p99:2"])) == 2


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
