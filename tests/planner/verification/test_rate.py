"""What a replica holds, and windows at a share of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.search.requests import Requests
from planner.simulation import kernel
from planner.verification.rate import at_rate, held_per_s
from tests.planner.verification.device import KNOBS, LAW, some_requests


def run(requests):
    return kernel.simulate(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None, KNOBS, LAW
    )


@pytest.mark.parametrize(("load", "queues"), [(0.8, False), (1.3, True)])
def test_below_it_the_queue_settles_and_above_it_does_not(load, queues):
    requests = some_requests(600)
    held = held_per_s(requests, run)
    outcome = run(at_rate(requests, load * held))
    assert outcome.load.saturated == queues
    if not queues:
        assert outcome.busy_s / outcome.makespan_s > 0.7  # it is a load, not an idle device


def test_a_few_requests_hold_what_many_like_them_do():
    requests = some_requests(100)
    many = replace(requests, **{name: np.tile(getattr(requests, name), 20) for name in
                                ("arrival_s", "prompt_tokens", "output_tokens")})  # fmt: skip
    few, all_of_them = (held_per_s(part, run) for part in (requests, many))
    assert few == pytest.approx(all_of_them, rel=0.02)


def test_the_rhythm_stays():
    requests = some_requests(50)
    faster = at_rate(requests, 4.0)
    gaps = np.diff(requests.arrival_s), np.diff(faster.arrival_s)
    assert np.allclose(gaps[0] / gaps[0].sum(), gaps[1] / gaps[1].sum())
    assert 49 / faster.arrival_s[-1] == pytest.approx(4.0)


def test_what_has_no_rate_says_so():
    with pytest.raises(ValueError, match="no rate to change"):
        at_rate(Requests(np.zeros(3), np.ones(3, dtype=np.int64), np.ones(3, dtype=np.int64)), 1.0)
