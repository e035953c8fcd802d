"""Replicas by time of day: each period has the least that hold, by another simulator and another way to cut."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from calibration.steptime import linear_model
from planner.search import Candidate, Conditions, Link, parse_objectives
from planner.search.combinations import Pools
from planner.search.engines import make
from planner.search.evaluate import Bench, Stopped, evaluate_candidate
from planner.search.periods import Asked, PeriodError, Periods, windows_of
from planner.search.prepare import trade_axes
from planner.search.requests import requests_of
from planner.search.schedule import RUN_IN_S, evaluated, schedule
from planner.simulation import reference
from planner.simulation.cluster.reference import simulate as simulate_by_reference
from planner.simulation.kernel import simulate as simulate_compiled
from planner.traffic import Traffic
from planner.traffic.generating.arrivals import Diurnal
from planner.traffic.source import Source

TTFT_S = 3.0
GOALS = parse_objectives([f"ttft:p90:{TTFT_S}", "itl:p90:0.5"])
LOAD = 1.2
KNOBS = make("vllm", 512, 1, 8_192, block_tokens=16)
#: A fifth of a second a step: few steps, so that the plain simulator can check them all.
STEP_TIME = linear_model(0.2, token_s=1e-4)


@pytest.fixture(scope="module")
def day() -> Traffic:
    """An hour and a half that stands for a day: a peak in the middle, nearly nothing at the ends."""
    arrivals = Diurnal(rate_per_s=0.16, swing=0.95, period_s=5_400.0, peak_s=2_700.0)
    random = np.random.default_rng(5)
    arrival_s = arrivals.draw(Source(random, {}), None, 5_400.0)
    count = len(arrival_s)
    return Traffic(
        arrival_s - arrival_s[0], random.integers(100, 900, count), random.integers(10, 50, count), "day",
        "synthetic",
    )  # fmt: skip


@pytest.fixture(scope="module")
def bench(day):
    own, _ = requests_of(day, Conditions(), 4_096, 16)
    made = Bench(own.faster(LOAD), GOALS, GOALS, STEP_TIME, 0.0, simulate_compiled, lambda: False)
    return made, own


@pytest.fixture(scope="module")
def answered(bench):
    made, own = bench
    return schedule(made, own, LOAD, Candidate(KNOBS, 3), Periods("parts", 6), 12, price_per_replica_hour=2.0)


def fails_by_hand(day: Traffic, start_s: float, end_s: float, replicas: int) -> bool:
    """Cut by hand and run by the plain simulator, a replica at a time; TTFT only, of the requests of the period."""
    inside = (day.arrival_s >= max(0.0, start_s - RUN_IN_S)) & (day.arrival_s < end_s)
    arrival, prompt, output = day.arrival_s[inside], day.prompt_tokens[inside], day.output_tokens[inside]
    judged = arrival >= start_s
    begin = arrival[0]
    ttft = []
    for r in range(replicas):
        mine = slice(r, None, replicas)
        ran = reference.simulate(
            (arrival[mine] - begin) / LOAD, prompt[mine], output[mine], None, KNOBS, STEP_TIME
        )
        ttft.append(ran.ttft_s()[judged[mine]])
    return bool(np.percentile(np.concatenate(ttft), 90.0) > TTFT_S)


def test_each_period_has_the_least_replicas_that_hold(answered, day) -> None:
    found = [each.need.replicas for each in answered.needs]
    assert all(found)
    assert max(found) >= 3 > min(found)  # or there is nothing to see
    for each in answered.needs:
        own = each.need.replicas
        assert not fails_by_hand(day, each.start_s, each.end_s, own)
        assert own == 1 or fails_by_hand(day, each.start_s, each.end_s, own - 1)


def test_the_reference_has_the_same_schedule(bench, answered) -> None:
    made, own = bench
    some = own.first(120)
    ask = partial(schedule, made, some, LOAD, Candidate(KNOBS, 3), Periods("parts", 3), 12)
    assert ask(simulate=simulate_by_reference) == ask()


def test_what_it_saves_is_told_against_the_busiest_period_all_day(answered) -> None:
    numbers = [each.need.replicas for each in answered.needs]
    assert answered.constant_replicas == max(numbers)
    hours = [(each.end_s - each.start_s) / 3_600 for each in answered.needs]
    used = sum(n * h for n, h in zip(numbers, hours, strict=True))
    assert answered.replica_hours == pytest.approx(used)
    assert answered.saved_share == pytest.approx(1 - used / (max(numbers) * sum(hours)))
    assert answered.cost == pytest.approx(2.0 * used)
    assert 0.1 < answered.saved_share < 0.9
    busy = [each.rate_per_s for each in answered.needs]
    assert numbers[busy.index(max(busy))] == max(numbers)


def test_threads_change_nothing(bench, answered) -> None:
    made, own = bench
    again = schedule(
        made, own, LOAD, Candidate(KNOBS, 3), Periods("parts", 6), 12, price_per_replica_hour=2.0, threads=3
    )
    assert again == answered


def test_the_whole_traffic_as_one_window_is_the_searchs_own_evaluation(bench) -> None:
    """No run-in, nothing cut: the numbers of `evaluate`."""
    made, own = bench
    candidate = Candidate(KNOBS, 4)
    part = replace(own, arrival_s=own.arrival_s / LOAD)
    assert evaluated(made, candidate, part, 0).values_s == evaluate_candidate(made, candidate).values_s


def test_where_nothing_holds_it_says_so_and_claims_no_saving(bench) -> None:
    made, own = bench
    found = schedule(made, own, LOAD, Candidate(KNOBS, 1), Periods("parts", 4), 1)
    failing = [each for each in found.needs if each.need.replicas is None]
    assert failing
    assert all(each.need.status in ("fails", "saturated") and each.need.reason for each in failing)
    assert (found.constant_replicas, found.saved_share, found.cost) == (None, None, None)


def test_it_stops_when_told(bench) -> None:
    made, own = bench
    with pytest.raises(Stopped):
        schedule(
            replace(made, should_stop=lambda: True), own, LOAD, Candidate(KNOBS, 1), Periods("parts", 4), 2
        )


def test_two_pools_vary_both_counts(bench) -> None:
    made, own = bench
    link = Link.entered(25.0)
    there = replace(made, link=link, bytes_per_token=131_072.0)
    pair = Candidate(KNOBS, 4, Pools(KNOBS, KNOBS, "pull"), 1)
    found = schedule(there, own.first(300), LOAD, pair, Periods("parts", 3), 8)
    for each in found.needs:
        need = each.need
        assert need.replicas is None or 0 < need.prefill_replicas < need.replicas


def test_classes_with_objectives_of_their_own_are_judged_by_their_own_requests(day) -> None:
    """All but one request in ten are of a class without a limit that could fail."""
    goals = parse_objectives(["chat=ttft:p90:3", "ttft:p90:60", "itl:p90:0.5"])
    classed = replace(
        day, request_class=(np.arange(day.requests) % 10 != 0).astype(np.int16), class_names=("chat", "batch")
    )
    own, _ = requests_of(classed, Conditions(), 4_096, 16, goals)
    made = Bench(own.faster(LOAD), goals, trade_axes(goals), STEP_TIME, 0.0, simulate_compiled, lambda: False)
    part = replace(own, arrival_s=own.arrival_s / LOAD)
    found = evaluated(made, Candidate(KNOBS, 3), part, 0)
    whole = evaluate_candidate(made, Candidate(KNOBS, 3))
    assert found.values_s == whole.values_s
    answered = schedule(made, own, LOAD, Candidate(KNOBS, 3), Periods("parts", 3), 12)
    for each in answered.needs:
        assert set(each.need.values_s) == {"chat=ttft:p90", "ttft:p90", "itl:p90"}
        assert each.need.replicas is not None


# Periods -----------------------------------------------------------------------------------------------------------


def test_windows_cover_the_traffic_once_and_in_order() -> None:
    for periods, span in itertools.product(
        (
            Periods("parts", 2),
            Periods("parts", 7),
            Periods("hours"),
            Periods("hours", first_request_s=30_600.5),
        ),
        (1.0, 3_600.0, 90_000.0, 86_400.0),
    ):
        windows = windows_of(span, periods)
        assert windows[0].start_s == 0.0
        assert windows[-1].end_s == math.nextafter(span, math.inf)
        assert all(a.end_s == b.start_s for a, b in itertools.pairwise(windows))


def test_hours_begin_on_the_hour_of_the_day_and_days_are_folded() -> None:
    windows = windows_of(2 * 86_400.0, Periods("hours", first_request_s=10.5 * 3_600))
    assert [(w.period, w.day) for w in windows[:2]] == [(10, 0), (11, 0)]
    assert windows[0].end_s == 1_800.0
    assert (windows[14].period, windows[14].day) == (0, 1)
    assert sum(w.period == 11 for w in windows) == 2


def test_an_hour_needs_what_its_worst_day_needs() -> None:
    """Two days of one busy hour; the second is busier. The quiet hours between are empty."""
    random = np.random.default_rng(1)
    times = [np.sort(random.random(n)) * 3_500 + day * 86_400 for day, n in ((0, 150), (1, 900))]
    arrival_s = np.concatenate(times)
    arrival_s -= arrival_s[0]
    count = len(arrival_s)
    traffic = Traffic(arrival_s, np.full(count, 500), np.full(count, 25), "two days", "synthetic")
    own, _ = requests_of(traffic, Conditions(), 4_096, 16)
    made = Bench(own, GOALS, GOALS, STEP_TIME, 0.0, simulate_compiled, lambda: False)
    found = schedule(made, own, 1.0, Candidate(KNOBS, 2), Periods("hours"), 12)
    first = found.needs[0]
    assert first.start_s == 0.0 and len(first.days) == 2
    assert first.worst == 1
    assert first.need.replicas == max(day.replicas for day in first.days) > first.days[0].replicas
    empty = found.needs[5]
    assert (empty.requests, empty.need.replicas, empty.need.reason) == (0, 1, "no requests")


def test_a_long_traffic_gets_hours_without_being_asked() -> None:
    assert Asked().periods_of(6 * 3_600.0) is None
    assert Asked().periods_of(6 * 3_600.0 + 1) == Periods("hours")
    assert Asked("none").periods_of(1e6) is None
    assert Asked("parts", 6).periods_of(10.0) == Periods("parts", 6)


@pytest.mark.parametrize(
    ("values", "field"),
    [({"by": "weeks"}, "by"), ({"by": "parts", "parts": 1}, "parts"), ({"by": "parts", "parts": 97}, "parts"),
     ({"by": "hours", "first_request_s": 86_400.0}, "first_request_s"),
     ({"by": "hours", "first_request_s": -1.0}, "first_request_s")],
)  # fmt: skip
def test_bad_periods_are_refused_with_their_field(values, field) -> None:
    with pytest.raises(PeriodError) as caught:
        Periods(**values)
    assert caught.value.field == field
