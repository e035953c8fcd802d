"""Laws of known truth, shared by the tests of the fit (pytest's importlib mode imports no sibling modules)."""

import importlib.util
import sys
from pathlib import Path

import pytest


def _load():
    name = "steptime_truth"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("truth.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def truth():
    return _load()


@pytest.fixture(scope="session")
def noisy(truth):
    """A model fitted to 52 noisy points of a law of the family, and the samples."""
    from calibration.steptime import fit

    samples = truth.measure(truth.roofline, truth.corners() + truth.shapes(41, 1), noise=0.02, seed=1)
    return fit(samples, seed=1), samples
