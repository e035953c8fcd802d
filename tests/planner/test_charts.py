"""Figures of traffic and plans: JSON without NaN, units on every axis, a table beside, a second cue for colour,
and points where the result says they are."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.charts import PLAN_FIGURES, TRAFFIC_FIGURES, drawable, plan_figure, traffic_figure
from planner.traffic import PrefixHashes, Traffic, synthesise

NASTY = "<b>x</b>"


def check(figure: dict[str, Any]) -> None:
    json.dumps(figure, allow_nan=False)
    for row in figure["table"]["rows"]:
        assert len(row) == len(figure["table"]["columns"])
    if not figure["empty"]:
        for axis in ("xaxis", "yaxis"):
            title = figure["layout"][axis].get("title", {}).get("text")
            assert title is None or re.search(r"\[[^\]]+\]$", title)
        assert figure["table"]["rows"]
        assert figure["note"]


def marks(figure: dict[str, Any], name: str) -> dict[str, Any]:
    return next(trace for trace in figure["data"] if trace.get("name") == name)


def trade_points(answer: dict[str, Any], status: str) -> set[tuple[float, float]]:
    trades = [c["trade"] for c in answer["candidates"] if c["trade"] and c["trade"]["status"] == status]
    return {(t["ttft_s"] * 1e3, t["itl_s"] * 1e3) for t in trades if t["ttft_s"] is not None}


# Plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAN_FIGURES)
@pytest.mark.parametrize("kind", ["feasible", "impossible", "short", "saturated", "stopped"])
def test_figures_of_every_answer(name, kind, answers) -> None:
    figure = plan_figure(name, answers[kind], NASTY)
    check(figure)
    assert figure["title"] == "&lt;b&gt;x&lt;/b&gt;"
    assert (name in drawable(answers[kind])) <= (not figure["empty"])


def test_the_trade_has_every_candidate_and_marks_the_chosen(answers) -> None:
    answer = answers["feasible"]
    figure = plan_figure("trade", answer)
    for status in ("meets", "fails"):
        trace = marks(figure, status)
        assert set(zip(trace["x"], trace["y"], strict=True)) == trade_points(answer, status)
    chosen = marks(figure, "chosen")
    predicted = {o["metric"]: o["predicted"] * 1e3 for o in answer["verdict"]["choice"]["objectives"]}
    assert (chosen["x"], chosen["y"]) == ([predicted["ttft"]], [predicted["itl"]])
    symbols = [marks(figure, name)["marker"]["symbol"] for name in ("meets", "fails", "chosen")]
    assert len(set(symbols)) == 3, "shape as well as colour"
    lines = [s for s in figure["layout"]["shapes"] if s["type"] == "line"]
    assert {s["x0"] for s in lines if s["x0"] == s["x1"]} == {100.0}
    assert {s["y0"] for s in lines if s["y0"] == s["y1"]} == {11.0}


def test_candidates_that_behave_alike_are_one_mark(answers) -> None:
    answer = copy.deepcopy(answers["feasible"])
    answer["candidates"].append(copy.deepcopy(answer["candidates"][0]))
    before, after = (plan_figure("trade", a) for a in (answers["feasible"], answer))
    assert sum(len(t["x"]) for t in before["data"]) == sum(len(t["x"]) for t in after["data"])
    assert any(
        "more that behave alike" in words for trace in after["data"] for words in trace.get("text", ())
    )


def test_what_is_not_covered_is_hollow_and_what_is_saturated_is_counted(answers) -> None:
    answer = copy.deepcopy(answers["feasible"])
    answer["candidates"][0]["trade"] |= {"status": "not covered", "ttft_s": 0.05, "itl_s": 0.01}
    answer["candidates"][1]["trade"] |= {"status": "saturated", "ttft_s": None, "itl_s": None}
    figure = plan_figure("trade", answer)
    assert marks(figure, "not covered")["marker"]["symbol"].endswith("-open")
    assert "1 more is saturated" in figure["note"]


def test_the_closest_is_marked_where_nothing_meets(answers) -> None:
    names = [trace.get("name") for trace in plan_figure("trade", answers["short"])["data"]]
    assert "closest" in names
    assert "chosen" not in names


def test_limits_that_were_not_asked_are_not_drawn(searched) -> None:
    figure = plan_figure("trade", searched("tpot:p50:1"))
    assert not figure["layout"].get("shapes")


def test_the_replica_curve_is_a_share_of_each_limit(answers) -> None:
    answer = answers["feasible"]
    figure = plan_figure("replicas", answer)
    for o in answer["summary"]["objectives"]:
        label = f"{o['metric'].upper()} p{o['percentile']:g}"
        trace = marks(figure, label)
        at = dict(zip(trace["x"], trace["y"], strict=True))
        assert at[answer["summary"]["replicas"]] == pytest.approx(o["predicted"] / o["limit"] * 100)
    lines = [t for t in figure["data"] if t["mode"] == "lines+markers"]
    assert (
        len({t["line"]["dash"] for t in lines}) == len({t["marker"]["symbol"] for t in lines}) == len(lines)
    )


def test_saturated_replica_counts_are_a_band(answers) -> None:
    answer = copy.deepcopy(answers["feasible"])
    answer["by_replicas"][0] |= {"values_s": {}, "split_s": {}, "status": "saturated"}
    figure = plan_figure("replicas", answer)
    bands = [s for s in figure["layout"]["shapes"] if s["type"] == "rect"]
    assert [(s["x0"], s["x1"]) for s in bands] == [(0.5, 1.5)]
    assert figure["table"]["rows"][0][-1] == "saturated"


def test_the_parts_of_ttft_add_up(answers) -> None:
    answer = answers["feasible"]
    figure = plan_figure("ttft", answer)
    own = f"{answer['summary']['replicas']} replica"
    index = next(i for i, y in enumerate(figure["data"][0]["y"]) if y.startswith(own))
    split = answer["verdict"]["choice"]["behaviour"]["split_s"]
    total = sum(trace["x"][index] for trace in figure["data"])
    assert total == pytest.approx((split["queue"] + split["prefill"] + split["first_decode"]) * 1e3, rel=1e-3)
    patterns = [trace["marker"]["pattern"]["shape"] for trace in figure["data"]]
    assert len(set(patterns)) == len(patterns)


def test_a_result_from_before_the_replica_curve_is_still_drawn(answers) -> None:
    answer = {key: value for key, value in answers["feasible"].items() if key != "by_replicas"}
    assert plan_figure("replicas", answer)["empty"]
    assert not plan_figure("ttft", answer)["empty"]
    assert "replicas" not in drawable(answer)


@pytest.mark.parametrize("draw", [plan_figure, traffic_figure])
def test_another_name_is_no_figure(draw, answers) -> None:
    with pytest.raises(KeyError):
        draw("pie", answers["feasible"])


# Traffic -------------------------------------------------------------------------------------------------------


def traffic_of(arrival_s: Any, prompt: Any = None) -> Traffic:
    n = len(arrival_s)
    lengths = np.full(n, 7) if prompt is None else np.asarray(prompt)
    return Traffic(np.asarray(arrival_s, dtype=np.float64), lengths, np.full(n, 3), "x", "columns")


def of_kinds() -> Traffic:
    """With classes, one of them under a nasty name, and with shared beginnings."""
    made = synthesise("demo", requests=40, seed=2)
    hashes = PrefixHashes(np.tile(np.arange(2, dtype=np.uint64), 40), np.arange(41) * 2, 512)
    kinds = (np.arange(40) % 3).astype(np.int16)
    return replace(made, prefix_hashes=hashes, request_class=kinds, class_names=("chat", NASTY, "batch"))


SAMPLES = {
    "kinds": of_kinds(),
    "preset": synthesise("chat", requests=2_000, seed=0),
    "one": traffic_of([0.0]),
    "one instant": traffic_of([0.0] * 50),
    "two days": traffic_of(np.arange(0, 172_800, 60)),
    "ten years": traffic_of([0.0, 1e8]),
    "microseconds": traffic_of(np.arange(100) * 1e-6),
}


@pytest.mark.parametrize("name", TRAFFIC_FIGURES)
@pytest.mark.parametrize("sample", SAMPLES)
def test_figures_of_every_traffic(name, sample) -> None:
    check(traffic_figure(name, SAMPLES[sample], NASTY))


def total(trace: dict[str, Any]) -> float:
    """Of y, which plotly packs as base64."""
    if isinstance(trace["y"], list):
        return float(sum(trace["y"]))
    import base64

    return float(np.frombuffer(base64.b64decode(trace["y"]["bdata"]), dtype=trace["y"]["dtype"]).sum())


@pytest.mark.parametrize("sample", ["preset", "two days", "one instant"])
def test_no_arrival_is_lost_and_bars_are_few(sample) -> None:
    figure = traffic_figure("arrivals", SAMPLES[sample])
    assert total(figure["data"][0]) == SAMPLES[sample].requests
    assert len(figure["table"]["rows"]) + figure["table"]["more"] <= 600


def test_bursts_are_cut_as_finely_as_they_can_be_read() -> None:
    rng = np.random.default_rng(0)
    burst = np.sort(rng.uniform(500, 501, 400))
    figure = traffic_figure("bursts", traffic_of(np.concatenate(([0.0], burst, [1000.0]))))
    assert "per 0.1 s" in figure["layout"]["yaxis"]["title"]["text"]
    calm = traffic_figure("bursts", traffic_of(np.arange(0, 1000, 2.0)))
    assert "per 10 s" in calm["layout"]["yaxis"]["title"]["text"]


def test_percentiles_of_lengths_are_numpys() -> None:
    lengths = np.arange(1, 1001)
    figure = traffic_figure("lengths", traffic_of(np.arange(1000.0), lengths))
    rows = {row[0]: row[1] for row in figure["table"]["rows"]}
    assert rows["p50"] == f"{np.percentile(lengths, 50):,.0f}"
    assert rows["largest"] == "1,000"
    assert len({trace["line"]["dash"] for trace in figure["data"]}) == 2
