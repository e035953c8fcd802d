"""Requests of one stamp: of a trace they come one after another, recorded ones with ids came in one instant."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.steptime.scalar import linear_model
from planner.simulation import kernel, reference
from planner.simulation.knobs import VllmKnobs
from planner.simulation.profile import Profile
from planner.simulation.workload import prepare

LINEAR = linear_model(0.1)
KNOBS = VllmKnobs(max_num_batched_tokens=16, max_num_seqs=4, num_blocks=6, block_size=2, policy="priority")
SAME = (np.zeros(2), np.array([4, 4]), np.array([6, 6]), np.array([1, 1]))


def preempted(simulate, tie):
    return simulate(*SAME, KNOBS, LINEAR, tie=tie).preemptions.tolist()


@pytest.mark.parametrize("simulate", [reference.simulate, kernel.simulate])
def test_the_later_of_equals_gives_way_and_the_first_of_one_instant(simulate):
    """Five blocks are needed by each in the end, six are there; a step gives both one token."""
    assert preempted(simulate, None)[0] == 0
    assert preempted(simulate, None)[1] > 0
    assert preempted(simulate, np.array([0, 1]))[0] > 0


def test_only_a_tie_says_that_equal_arrivals_are_one_instant():
    profile: Profile = KNOBS.profile
    assert prepare(*SAME, profile).victim_tie.tolist() == [0, 1]
    assert prepare(*SAME, profile, np.array([1, 0])).victim_tie.tolist() == [0, 0]
