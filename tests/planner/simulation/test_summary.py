"""What is told of a run: attainment by hand, classes, pools and links, and the same words for every topology."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest

from calibration.steptime.scalar import constant_model, linear_model
from calibration.transfer import TransferTable
from planner.simulation import kernel
from planner.simulation.attainment import attain, meets, values_s
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PULL,
    PUSH_CHUNKS,
    Aggregated,
    Disaggregated,
    HandOff,
    Network,
    QueueLimit,
    pool,
)
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.phases import TTFT_PARTS, ttft_parts_s
from planner.simulation.request_rows import columns_of, csv_lines, json_rows
from planner.simulation.summary import summarise
from planner.simulation.time_series import time_series

ONE_SECOND = constant_model(1.0)
SYNC = VllmKnobs(8, 1, num_blocks=10, block_size=4, async_scheduling=False)


@dataclass(frozen=True)
class Limit:
    metric: str
    percentile: float
    limit_s: float


def three_in_a_row() -> Outcome:
    """One seat, steps of 1 s. A and B at 0 s with 2 outputs, C at 1 s with 1; D never fits 40 tokens of KV.
    First tokens at 1, 3, 5 s; last tokens at 2, 4, 5 s."""
    return kernel.simulate(
        np.array([0.0, 0.0, 1.0, 1.0]),
        np.array([4, 4, 4, 60]),
        np.array([2, 2, 1, 1]),
        None,
        SYNC,
        ONE_SECOND,
        bin_s=1.0,
    )


def test_attainment_by_hand() -> None:
    outcome = three_in_a_row()
    np.testing.assert_array_equal(values_s(outcome, "ttft"), [1, 3, 4, np.nan])
    np.testing.assert_array_equal(values_s(outcome, "tpot"), [1, 1, 0, np.nan])
    np.testing.assert_array_equal(values_s(outcome, "itl"), [1, 1, 0, np.nan])
    np.testing.assert_array_equal(values_s(outcome, "e2e"), [2, 4, 4, np.nan])
    limits = [Limit("ttft", 50, 3.0), Limit("tpot", 95, 0.5), Limit("itl", 99, 1.0)]
    assert meets(outcome, limits[:1]).tolist() == [True, True, False, False]
    assert meets(outcome, limits).tolist() == [False] * 4  # who is quick at first has long gaps
    assert meets(outcome, []).tolist() == [True, True, True, False]
    found = attain(outcome, [limits[0], limits[2]], span_s=5.0)
    assert (found.offered, found.share, found.goodput_per_s) == (4, 0.5, 0.4)
    ttft, itl = found.objectives
    assert (ttft.share, ttft.value_s, ttft.holds, ttft.gap_share) == (0.5, 3.0, True, None)
    assert (itl.share, itl.holds) == (0.75, False)  # the middle of the gaps' bin lies above the gap
    with pytest.raises(ValueError, match="unknown metric 'latency'"):
        values_s(outcome, "latency")


def test_summary_of_one_replica_by_hand() -> None:
    told = summarise(three_in_a_row(), [Limit("ttft", 50, 3.0)])
    assert (told.verdict, told.makespan_s, told.span_s) == ("not judged", 5.0, 5.0)
    everybody = told.all
    assert (everybody.offered, everybody.served, everybody.refused["never fits"]) == (4, 3, 1)
    assert everybody.latency_s["ttft"].mean == pytest.approx((1 + 3 + 4) / 3)
    assert everybody.latency_s["largest gap"].count == everybody.latency_s["itl"].count == 2
    assert everybody.ttft_parts_s["queue"].largest == 3.0
    assert everybody.ttft_parts_s["transfer"].largest == 0.0
    assert (everybody.requests_per_s, everybody.generated_tokens_per_s) == (pytest.approx(0.6), 1.0)
    assert everybody.attainment.goodput_per_s == 0.4
    (replicas,) = told.pools
    assert (replicas.name, replicas.replicas, replicas.idle_share) == ("replicas", 1, 0.0)
    assert replicas.steps == {"decode": 2, "prefill": 3, "mixed": 0}
    assert replicas.kv_mean_share == pytest.approx((1 + 2 + 1 + 2 + 1) / 50)
    assert replicas.kv_peak_share == pytest.approx(0.2)
    assert told.links == ()
    json.dumps(told.to_dict(), allow_nan=False)


def test_classes_have_their_own_objectives() -> None:
    """A and C are chat, B and D batch: chat must begin within 2 s, batch only end within 100 s."""
    kinds, names = np.array([0, 1, 0, 1]), ("chat", "batch")
    told = summarise(
        three_in_a_row(),
        [Limit("ttft", 95, 2.0)],
        request_class=kinds,
        class_names=names,
        class_objectives={"batch": [Limit("e2e", 95, 100.0), Limit("itl", 99, 0.5)]},
    )
    chat, batch = told.classes["chat"], told.classes["batch"]
    assert (chat.offered, chat.served, batch.offered, batch.served) == (2, 2, 2, 1)
    assert (chat.attainment.share, batch.attainment.share) == (0.5, 0.0)
    e2e, itl = batch.attainment.objectives
    assert (e2e.share, e2e.value_s) == (0.5, 4.0)
    assert (itl.share, itl.value_s, itl.gap_share) == (0.0, None, None)  # no histogram of its own
    assert itl.holds is False  # B has one gap, of 1 s
    assert (told.holds, told.by_class) == (False, True)
    assert "itl" not in batch.latency_s
    assert batch.latency_s["largest gap"].largest == 1.0
    assert (told.all.attainment.share, told.all.attainment.goodput_per_s) == (0.25, 0.2)  # A alone
    with pytest.raises(ValueError, match="no class 'agents': it has chat, batch"):
        summarise(three_in_a_row(), class_objectives={"agents": []}, class_names=names)


def clusters() -> list[ClusterOutcome]:
    rng = np.random.default_rng(9)
    count = 300
    load = np.cumsum(rng.exponential(0.03, count)), rng.integers(1, 900, count), rng.integers(1, 60, count)
    knobs = VllmKnobs(512, 16, num_blocks=500)
    model = linear_model(0.01, token_s=1e-4, row_s=1e-4)
    replicas = pool(2, knobs, model)
    deployments = [Aggregated(replicas)] + [
        Disaggregated(replicas, replicas, HandOff(mode, 1e4), Network.cards(TransferTable.line(1e-3, 1e8)))
        for mode in (PULL, AFTER_PREFILL, PUSH_CHUNKS)
    ]
    return [
        cluster.simulate(
            *load, None, deployment, queue_limit=QueueLimit(requests=3), warm_up_requests=20, bin_s=1e-3
        )
        for deployment in deployments
    ]


def test_every_topology_tells_the_same_things() -> None:
    limits = [Limit("ttft", 95, 0.3), Limit("tpot", 95, 0.05)]
    shapes = []
    for outcome in clusters():
        told = summarise(outcome, limits)
        requests, served = outcome.requests, outcome.requests.served
        parts = ttft_parts_s(outcome)
        assert tuple(parts) == TTFT_PARTS
        total = sum(parts[name] for name in TTFT_PARTS)
        np.testing.assert_allclose(total[served], requests.ttft_s(), atol=1e-9)
        assert all((parts[name][served] > -1e-9).all() for name in TTFT_PARTS)
        assert told.all.offered == 280
        assert told.all.served + sum(told.all.refused.values()) == 280
        assert told.all.latency_s["ttft"].count == told.all.served
        both = meets(requests, limits)[20:]
        assert told.all.attainment.share == both.sum() / 280
        assert told.all.attainment.goodput_per_s == pytest.approx(both.sum() / told.span_s)
        for one in told.pools:
            assert 0.0 < one.kv_mean_share < one.kv_peak_share <= 1.0
            assert 0.0 < one.idle_share < 1.0
        for link in told.links:
            assert 0.0 < link.mean_share <= link.busy_share <= 1.0 + 1e-12
            assert link.mean_share <= link.peak_share <= 1.0 + 1e-9
        shapes.append(([one.name for one in told.pools], len(told.links) > 0, set(told.all.latency_s)))
        json.dumps(told.to_dict(), allow_nan=False)
    metrics = {"ttft", "tpot", "e2e", "largest gap", "itl"}
    assert shapes == [(["replicas"], False, metrics)] + [(["prefill", "decode"], True, metrics)] * 3
    assert any(told > 0 for told in (outcome.requests.rejected.size for outcome in clusters()))


def test_a_series_loses_nothing() -> None:
    """Over all bins: requests, tokens that clients got, waiting time, seats; coarser bins hold the same."""
    for outcome in [*clusters(), three_in_a_row()]:
        requests = outcome if isinstance(outcome, Outcome) else outcome.requests
        served = requests.served
        queue_s = (requests.first_scheduled_s - requests.arrival_s)[served].sum()
        for most in (None, 7):
            series = time_series(outcome, most)
            assert most is None or len(series.waiting) <= most
            total = {name: getattr(series, name).sum() * series.width_s for name in series.__slots__[1:]}
            assert total["waiting"] == pytest.approx(queue_s, rel=1e-6, abs=1e-6)
            assert total["arrived_per_s"] == pytest.approx(len(requests.arrival_s))
            assert total["finished_per_s"] == pytest.approx(served.sum())
            assert total["generated_tokens_per_s"] == pytest.approx(requests.output_tokens[served].sum())
            assert total["computed_tokens_per_s"] == pytest.approx(requests.computed_tokens)
            assert total["busy_share"] * requests.replicas == pytest.approx(requests.busy_s)
            assert total["kv_share"] * requests.kv_blocks == pytest.approx(requests.kv_block_s)
            assert (series.kv_share <= 1.0 + 1e-9).all()
            assert (series.busy_share <= 1.0 + 1e-9).all()


def test_a_series_by_hand() -> None:
    series = time_series(three_in_a_row())
    assert series.width_s == 1.0
    assert series.waiting.tolist() == [1, 2, 1, 1, 0]  # B from 0 to 2 s, C from 1 to 4 s
    assert series.running.tolist() == [1, 1, 1, 1, 1]
    assert series.kv_share.tolist() == [0.1, 0.2, 0.1, 0.2, 0.1]
    assert series.generated_tokens_per_s.tolist() == [0, 1, 1, 1, 2]  # a step's tokens come at its end
    assert series.arrived_per_s.tolist() == [2, 2, 0, 0, 0]
    with pytest.raises(ValueError, match="kept no bins"):
        time_series(kernel.simulate(np.zeros(1), np.ones(1, int), np.ones(1, int), None, SYNC, ONE_SECOND))


def test_rows_of_requests() -> None:
    outcome = three_in_a_row()
    columns = columns_of(outcome, np.array([0, 1, 0, 1]), ("chat", "batch"))
    rows = list(json_rows(columns))
    assert rows[1] == {
        "request": 1, "arrival_s": 0.0, "prompt_tokens": 4, "output_tokens": 2, "outcome": "served",
        "ttft_s": 3.0, "tpot_s": 1.0, "largest_gap_s": 1.0, "e2e_s": 4.0, "queue_s": 2.0, "prefill_s": 1.0,
        "chunk_wait_s": 0.0, "transfer_s": 0.0, "first_decode_s": 0.0, "first_token_s": 3.0, "done_s": 4.0,
        "preemptions": 0, "hit_tokens": 0, "rehit_tokens": 0, "class": "batch",
    }  # fmt: skip
    assert (rows[2]["tpot_s"], rows[2]["largest_gap_s"]) == (None, None)
    assert (rows[3]["outcome"], rows[3]["ttft_s"], rows[3]["done_s"]) == ("never fits", None, None)
    read = list(csv.DictReader(io.StringIO("".join(csv_lines(columns, lines_at_once=2)))))
    assert [row["ttft_s"] for row in read] == ["1.0", "3.0", "4.0", ""]
    json.dumps(rows, allow_nan=False)


def test_rows_of_a_cluster_name_its_replicas() -> None:
    outcome = clusters()[1]
    columns = columns_of(outcome)
    rows = list(json_rows(columns))
    assert {row["outcome"] for row in rows} == {"served", "queue full"}
    for row in rows:
        if row["outcome"] == "served" and row["prefill_replica"] is not None:
            assert row["moved_bytes"] == (row["prompt_tokens"] - 1) * 1e4
            assert row["transfer_s"] > 0.0
    json.dumps(rows, allow_nan=False)
