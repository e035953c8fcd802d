"""A window of a cluster's run holds the steps that the whole record has, and every request's phases."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibration.steptime.scalar import linear_model
from calibration.transfer import TransferTable
from planner.simulation.cluster.deployment import HAND_OFFS, PULL, Disaggregated, HandOff, Network, pool
from planner.simulation.cluster.rules import rules_of
from planner.simulation.cluster.workload import prepare
from planner.simulation.cluster_microscope import look_at_cluster
from planner.simulation.kernel import cluster
from planner.simulation.knobs import VllmKnobs
from planner.simulation.microscope import Window, step_of


@pytest.mark.parametrize("mode", HAND_OFFS)
def test_the_window_is_part_of_the_whole_record(mode: str) -> None:
    rng = np.random.default_rng(6)
    count = 2000
    load = np.cumsum(rng.exponential(0.02, count)), rng.integers(2, 600, count), rng.integers(1, 80, count)
    knobs, model = VllmKnobs(512, 32, num_blocks=2000), linear_model(0.005, token_s=2e-5, row_s=2e-5)
    deployment = Disaggregated(
        pool(2, knobs, model),
        pool(2, knobs, model),
        HandOff(mode, 1e4),
        Network.cards(TransferTable.line(1e-3, 1e9)),
    )
    outcome = cluster.simulate(*load, None, deployment, record_steps=True)
    rules = rules_of(deployment)
    requests = prepare(*load, None, None, rules)
    low, high = 20.0, 20.5
    told = look_at_cluster(requests, rules, outcome, Window(low, high))
    expected = [
        step_of(use.record, at, at, replica)
        for replica, use in enumerate((*outcome.prefill, *outcome.decode))
        for at in np.flatnonzero((use.record.end_s >= low) & (use.record.start_s <= high)).tolist()
    ]
    assert sorted(told.steps, key=lambda step: (step.replica, step.number)) == expected
    assert len(expected) > 50
    assert not told.truncated
    run = outcome.requests
    here = np.flatnonzero(run.served & (run.arrival_s <= high) & (run.done_s >= low))
    assert [way.request for way in told.requests] == here.tolist()
    for way in told.requests:
        names = [phase.name for phase in way.phases]
        assert names[-1] == "decode" or run.output_tokens[way.request] == 1
        assert ("first decode" in names) == (mode == PULL and way.prefill_replica is not None)
        assert way.phases[0].from_s == run.arrival_s[way.request] or "queue" not in names
        assert all(phase.to_s > phase.from_s for phase in way.phases)
    json.dumps(told.to_dict(), allow_nan=False)
    with pytest.raises(ValueError, match="window is one of time"):
        look_at_cluster(requests, rules, outcome, Window(from_step=0, to_step=1))
