"""Joint attainment and objectives of classes: counted one by one here, against what the search says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import Architecture
from planner.search import (
    Conditions,
    Link,
    Objective,
    PlanError,
    SearchSpace,
    parse_objectives,
    plan,
)
from planner.search.class_gaps import gaps_by_group
from planner.search.combinations import Candidate, pool_pairs
from planner.search.evaluate import Bench, evaluate, evaluate_candidate, judge, run
from planner.search.requests import Requests, requests_of
from planner.search.screening import beginning, fails_early
from planner.search.space import Bounds
from planner.simulation.gaps import gap_percentile
from planner.simulation.kernel import simulate
from planner.simulation.knobs import VllmKnobs
from planner.traffic import Traffic

KNOBS = VllmKnobs(max_num_batched_tokens=512, max_num_seqs=16, num_blocks=4000)


def classed(some: Traffic, share: float = 0.3, seed: int = 0) -> Traffic:
    """The same requests, `share` of them of class batch, which have prompts three times as long."""
    is_batch = np.random.default_rng(seed).random(some.requests) < share
    return replace(
        some, prompt_tokens=np.where(is_batch, 3 * some.prompt_tokens, some.prompt_tokens),
        request_class=is_batch.astype(np.int16), class_names=("chat", "batch"),
    )  # fmt: skip


def bench_of(some: Traffic, model: Any, *texts: str, conditions: Conditions | None = None) -> Bench:
    goals = parse_objectives(texts)
    requests, _ = requests_of(some, conditions or Conditions(), 8192, 16, goals)
    return Bench(requests, goals, (goals[0], goals[0]), model.arrays(), 0.0, simulate, lambda: False,
                 link=Link.entered(50.0, 0.001), bytes_per_token=131_072.0)  # fmt: skip


@pytest.mark.parametrize("replicas", [1, 3])
def test_goodput_holds_where_the_share_of_requests_meets_every_limit(
    replicas: int, traffic: Callable[..., Traffic], model: Any
) -> None:
    some = traffic(requests=400, rate_per_s=6.0 * replicas)
    for percentile in (50.0, 90.0, 99.0):
        for ttft_s in (0.05, 0.15, 0.3):
            goal = Objective.goodput(percentile, {"ttft": ttft_s, "itl": 0.06, "tpot": 0.02, "e2e": 1.5})
            bench = bench_of(some, model, goal.spec, conditions=Conditions(front_end_s=0.01, network_s=0.005))
            found = evaluate(bench, KNOBS, replicas, complete=True)
            met = 0
            for r in range(replicas):
                part = bench.requests.share(r, replicas)
                out = simulate(
                    part.arrival_s, part.prompt_tokens, part.output_tokens, None, KNOBS, model.arrays()
                )
                for i in range(len(part.arrival_s)):
                    gaps = max(1, int(out.output_tokens[i]) - 1)
                    met += bool(
                        out.first_token_s[i] - out.arrival_s[i] + 0.015 <= ttft_s
                        and out.done_s[i] - out.arrival_s[i] + 0.015 <= 1.5
                        and out.max_gap_s[i] <= 0.06
                        and (out.done_s[i] - out.first_token_s[i]) / gaps <= 0.02
                    )
            assert found.attained[goal.key] == pytest.approx(met / 400)
            holds = 100 * met >= percentile * 400
            assert (found.values_s[goal.key] <= 1.0) == holds
            assert (judge(found, bench.objectives)[0] == "meets") == holds


def test_a_class_is_held_to_its_own_objectives_and_the_others_to_the_rest(
    traffic: Callable[..., Traffic], model: Any
) -> None:
    some = classed(traffic(requests=500, rate_per_s=5.0))
    bench = bench_of(some, model, "ttft:p90:1", "tpot:p90:1", "batch=ttft:p90:3", "batch=e2e:p50:9")
    ran = run(bench, Candidate(KNOBS, 2))
    found = evaluate(bench, KNOBS, 2, complete=True)
    dealt = np.concatenate([some.request_class[0::2], some.request_class[1::2]])  # type: ignore[index]
    ttft_s, e2e_s = ran.pooled.ttft_s(), ran.pooled.e2e_s()
    assert found.values_s["ttft:p90"] == np.percentile(ttft_s[dealt == 0], 90)
    assert found.values_s["batch=ttft:p90"] == np.percentile(ttft_s[dealt == 1], 90)
    assert found.values_s["batch=e2e:p50"] == np.percentile(e2e_s[dealt == 1], 50)
    assert bench.requests.samples(bench.objectives[2]) == int((some.request_class == 1).sum())


@pytest.mark.parametrize("split", [False, True])
def test_gaps_of_classes_are_the_runs_own_gaps(
    split: bool, traffic: Callable[..., Traffic], model: Any
) -> None:
    """All classes together are the run's histogram, count by count, with preemptions; and one class's gaps are those
    of the reading token by token of its requests."""
    some = classed(traffic(requests=200, rate_per_s=12.0, output=60))
    bench = bench_of(some, model, "itl:p99:1", "batch=itl:p99:1")
    knobs = replace(KNOBS, num_blocks=260)  # too few: requests are preempted
    candidate = Candidate(knobs, 2)
    if split:
        space = SearchSpace((512,), max_num_seqs=(16,), local_prefill_tokens=(0, 100))
        pools = pool_pairs(space, Bounds(4096, 64), 20_000, 8192, "vllm", 300)[-1]
        candidate = Candidate(pools.decode, 3, pools, 1)
    ran = run(bench, candidate)
    assert ran.gaps is not None
    assert split or int(ran.pooled.preemptions.sum()) > 0
    assert ran.gaps.sum(axis=0).tolist() == ran.pooled.gap_counts.tolist()
    assert ran.group is not None
    for number in (0, 1):
        mine = ran.group == number
        assert ran.gaps[number].sum() == (ran.pooled.output_tokens[mine] - 1).sum()
        largest = ran.pooled.max_gap_s[mine].max()
        assert gap_percentile(ran.gaps[number], 100.0) == pytest.approx(largest, rel=1 / 200)
    found = evaluate_candidate(bench, candidate)
    assert found.values_s["batch=itl:p99"] == gap_percentile(ran.gaps[1], 99.0)
    assert ran.gaps[0].tolist() != ran.gaps[1].tolist()


def test_classes_that_never_meet_have_the_gaps_of_runs_by_themselves(
    traffic: Callable[..., Traffic], model: Any
) -> None:
    first, later = traffic(requests=60, rate_per_s=6.0), traffic(requests=60, rate_per_s=9.0, seed=1)
    arrival_s = np.concatenate([first.arrival_s, later.arrival_s + 1e4])
    outputs = np.concatenate([first.output_tokens, later.output_tokens])
    prompts = np.concatenate([first.prompt_tokens, later.prompt_tokens])
    together = simulate(arrival_s, prompts, outputs, None, KNOBS, model.arrays(), record_steps=True)
    assert together.record is not None
    gaps = gaps_by_group(together, [together.record], np.repeat([0, 1], 60), 2)
    alone = simulate(first.arrival_s, first.prompt_tokens, first.output_tokens, None, KNOBS, model.arrays())
    assert gaps[0].tolist() == alone.gap_counts.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_cut_short_is_what_fails_whole(
    seed: int, traffic: Callable[..., Traffic], model: Any, monkeypatch: Any
) -> None:
    """Bounds of a run cut short, and the trace's beginning, with joint objectives and with classes."""
    monkeypatch.setattr("planner.search.screening.LEAST_REQUESTS", 100)
    random = np.random.default_rng(seed)
    some = classed(traffic(requests=240, rate_per_s=random.uniform(2, 20), seed=seed), seed=seed)
    joint = f"ttft={random.uniform(0.05, 0.6):.3f}+tpot={random.uniform(0.011, 0.03):.4f}+itl=0.08"
    texts = [f"goodput:p{random.choice([50, 90, 99])}:{joint}"]
    if seed % 2:
        texts += [f"batch=itl:p{random.choice([50, 95])}:{random.uniform(0.02, 0.08):.3f}", "batch=e2e:p90:2"]
    bench = bench_of(some, model, *texts)
    for replicas in (1, 2, 5):
        whole = evaluate(bench, KNOBS, replicas, complete=True)
        short = evaluate(bench, KNOBS, replicas, complete=False)
        assert (judge(short, bench.objectives)[0] == "meets") == (
            judge(whole, bench.objectives)[0] == "meets"
        )
        assert all(bound <= whole.values_s[key] for key, bound in short.values_s.items())
    opening = beginning(bench)
    assert opening is not None
    for pair in pool_pairs(
        SearchSpace((256, 1024), max_num_seqs=(16,)), Bounds(4096, 64), 20_000, 8192, "vllm", 300
    ):
        candidate = Candidate(pair.decode, 2, pair, 1)
        if fails_early(bench, opening, candidate):
            assert judge(evaluate_candidate(bench, candidate), bench.objectives)[0] != "meets"


@pytest.fixture
def ask(model: Any, architecture: Architecture) -> Callable[..., Any]:
    def asked(some: Traffic, *texts: str, **options: Any) -> Any:
        space = SearchSpace((256, 1024), max_num_seqs=(16, 64), max_replicas=3)
        options = {"refits": 3, "threads": 2, "max_model_len": 8192} | options
        return plan(some, model, 40_000, architecture, parse_objectives(texts), space, **options)

    return asked


def test_a_plan_for_goodput_says_the_share_and_searches_for_it(
    ask: Callable[..., Any], traffic: Callable[..., Traffic]
) -> None:
    some = traffic(requests=400, rate_per_s=12.0)
    result = ask(some, "goodput:p95:ttft=0.3+tpot=0.03")
    choice = result.verdict.choice
    assert choice is not None
    (told,) = choice.predictions
    assert told.attained is not None
    assert told.attained >= 0.95
    assert "TTFT <= 300 ms and TPOT <= 30 ms for 95 % of requests (predicted 9" in result.verdict.sentence
    fewer = [c for c in result.candidates for t in c.tried if t.replicas < choice.candidate.replicas]
    assert fewer, "one replica is too few for this load"
    strict = ask(some, "goodput:p95:ttft=0.0001+tpot=0.03")
    assert strict.verdict.impossible
    assert "is impossible for a single request" in strict.verdict.sentence
    assert "% of the limits" in strict.verdict.sentence
    assert result.summary_dict()["objectives"][0]["attained"] == told.attained
    assert result.closer is not None
    assert {s.what for s in result.closer.sensitivities} >= {"rate", "burstiness", "prompt length"}
    assert result.closer.breaking.first in ("goodput:p95", "saturated", None)


def test_a_plan_with_classes_names_the_one_that_binds(
    ask: Callable[..., Any], traffic: Callable[..., Traffic]
) -> None:
    some = classed(traffic(requests=300, rate_per_s=6.0))
    result = ask(some, "ttft:p95:2", "batch=ttft:p95:0.9", "batch=itl:p99:1")
    assert result.feasible
    assert result.verdict.binding == "batch=ttft:p95"
    assert "batch: TTFT p95 <= 900 ms" in result.verdict.sentence
    keys = [p.objective.key for p in result.verdict.choice.predictions]
    assert keys == ["ttft:p95", "batch=ttft:p95", "batch=itl:p99"]
    again = ask(some, "ttft:p95:2", "batch=ttft:p95:0.9", "batch=itl:p99:1", threads=1)
    assert again.to_dict() == result.to_dict()
    every = ask(some, "chat=ttft:p95:2", "batch=ttft:p95:0.9")
    assert every.feasible


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("night=ttft:p95:1",), "the traffic has no class 'night': it has chat, batch"),
        (("chat=ttft:p95:1", "batch=ttft:p95:1", "itl:p99:1"), "is for nobody"),
    ],
)
def test_objectives_of_nobody_are_refused(
    texts: tuple[str, ...], message: str, ask: Callable[..., Any], traffic: Callable[..., Traffic]
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        ask(classed(traffic(requests=50)), *texts)
    assert caught.value.field == "objectives"
    with pytest.raises(PlanError, match="its requests have no classes"):
        ask(traffic(requests=50), "chat=ttft:p95:1")


def test_requests_keep_their_groups_when_dealt_and_drawn(traffic: Callable[..., Traffic]) -> None:
    some = classed(traffic(requests=40))
    requests, _ = requests_of(
        some, Conditions(), 8192, 16, parse_objectives(["batch=ttft:p95:1", "itl:p99:1"])
    )
    assert isinstance(requests, Requests)
    assert requests.group is not None
    assert requests.share(1, 3).group.tolist() == requests.group[1::3].tolist()  # type: ignore[union-attr]
    order = np.arange(40)[::-1].copy()
    drawn = requests.reordered(order, requests.arrival_s)
    assert drawn.group.tolist() == requests.group[::-1].tolist()  # type: ignore[union-attr]
