"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow: make test-all runs it")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder with other people's data (traces, scheduler recordings, configs), which is not in this
    repository. REFERENCE_DATA names it; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("REFERENCE_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("reference data not found: set REFERENCE_DATA")
    return folder
