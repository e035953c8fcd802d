"""A disaggregated run that was worked out for real vLLM rules: one prefill and one decode engine, pull."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.steptime.scalar import linear_model
from calibration.transfer import TransferTable
from planner.simulation.cluster import reference
from planner.simulation.cluster.deployment import PULL, Disaggregated, HandOff, Network, pool
from planner.simulation.cluster.outcome import ClusterOutcome
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs

MS = 1e-3


@pytest.fixture
def recorded(reference_data: Path) -> dict[str, Any]:
    cases = json.loads((reference_data / "schedulers" / "small-cases.json").read_text())
    return next(case for case in cases if case["name"].startswith("T13"))


@pytest.mark.parametrize("simulate", [reference.simulate, cluster.simulate], ids=["reference", "kernel"])
def test_t13(recorded: dict[str, Any], simulate: Any) -> None:
    """Both engines: 8 tokens a step, synchronous; a step takes 10 + prefilled tokens + 2 x decode rows ms. A result
    reaches the decode side 1 ms later; a transfer takes 5 + prompt ms: of prompt - 1 pulled tokens, so 6 + 1 per token.
    """
    knobs = VllmKnobs(8, 1_000, num_blocks=10_000, block_size=4, async_scheduling=False)
    replica = pool(
        1, knobs, linear_model(10 * MS, token_s=MS, row_s=MS)
    )  # a decode row: one token and one row
    network = Network(TransferTable.line(latency_s=6 * MS, bytes_per_s=1 / MS))
    deployment = Disaggregated(replica, replica, HandOff(PULL, bytes_per_token=1.0, message_s=MS), network)
    asked = recorded["requests"]
    outcome: ClusterOutcome = simulate(
        np.array([request["arrive"] * MS for request in asked]),
        np.array([request["prompt"] for request in asked]),
        np.array([request["out"] for request in asked]),
        None,
        deployment,
        record_steps=True,
    )
    decode = outcome.decode[0].record
    assert decode is not None
    for position, request in enumerate(asked):
        expected = recorded["metrics"][request["id"]]
        assert outcome.requests.ttft_s()[position] == pytest.approx(expected["ttft"] * MS)
        ends = [
            decode.end_s[step]
            for step in range(len(decode.end_s))
            if position in decode.request[decode.offsets[step] : decode.offsets[step + 1]]
        ]
        assert np.diff(ends) == pytest.approx(np.array(expected["itl"]) * MS)
    # the rest of its timeline: "ready 52", "ready 101", and the steps of both sides
    assert outcome.kv_ready_s == pytest.approx(np.array([52, 101]) * MS)
    assert outcome.transfer_start_s == pytest.approx(np.array([37, 76]) * MS)
    prefill = outcome.prefill[0].record
    assert prefill is not None
    assert prefill.end_s == pytest.approx(np.array([18, 36, 54, 70]) * MS)
    busy = np.diff(decode.offsets) > 0
    assert decode.start_s[busy] == pytest.approx(np.array([52, 64, 76, 88, 101, 113, 125]) * MS)
