"""Intervals have the coverage they state, for a law of the fitted family and for another, on a device that is not
quiet. All laws, real calibrations and drift checks: `python -m benchmarks.synthetic_truth`."""

import numpy as np
import pytest

from benchmarks.synthetic_truth import family, quick_coverage, superlinear


@pytest.mark.parametrize(("make", "seed"), [(family, 0), (superlinear, 700)])
def test_nine_of_ten_fresh_steps_lie_in_their_interval(make, seed) -> None:
    """Of about 94 covered steps; four standard errors of such a share are 12 points."""
    assert abs(quick_coverage(make, seed) - 0.9) <= 4 * np.sqrt(0.9 * 0.1 / 90)
