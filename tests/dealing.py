"""How tests are dealt to the processes of `pytest -n`: file by file, what takes longest first.

Files that wait for processes of their own come first: they take minutes with few tests, and whoever of the test
processes took them last would keep the others waiting at the end. Those that use one installation (jobs/conftest.stack)
are one piece, in this order, so that it is made once, and nobody takes its workers away while test_recovery waits.
"""

from __future__ import annotations

from typing import Any

import pytest

ONE_INSTALLATION = tuple(
    f"tests/jobs/test_{name}.py" for name in ("broker", "life", "recovery", "imports", "shared_plan")
)
#: Of a test that starts workers, its fixtures included: a bound on what hangs, on a machine that does other things too.
HANGS_AFTER_S = 900


def piece_of(nodeid: str) -> str:
    """What a process is dealt at once."""
    file = nodeid.partition("::")[0]
    return "tests/jobs" if file in ONE_INSTALLATION else file


def _place(item: pytest.Item) -> tuple[bool, int]:
    file = item.nodeid.partition("::")[0]
    return "worker" not in item.keywords, ONE_INSTALLATION.index(file) if file in ONE_INSTALLATION else -1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    waiting = {item.path for item in items if "worker" in item.keywords}
    items.sort(key=lambda item: (item.path not in waiting, _place(item)[1]))
    for item in items:
        if "worker" in item.keywords:
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_S))
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow: make test-all runs it")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByPiece(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return piece_of(nodeid)

    return ByPiece(config, log)
