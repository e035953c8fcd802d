import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("formula_runner", Path(__file__).with_name("formula.py"))
_formula = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_formula)


@pytest.fixture
def formula():
    """The module formula.py: FormulaRunner, roofline_seconds."""
    return _formula
