"""How tests are dealt to the processes of `pytest -n`: file by file, what takes longest first.

Files that wait for processes of their own come first: they take minutes with few tests, and whoever of the test
processes took them last would keep the others waiting at the end. Those that use one installation (jobs/conftest.stack)
are one piece, in this order, so that it is made once, and nobody takes its workers away while test_recovery waits.
Where DATABASE_URL or REDIS_URL name a server, all that make installations are one piece: each takes a database of its
own and an unused number of that Redis, one after the other.
Then come those that need no simulator, which is being compiled meanwhile, then the longest, and last many short ones,
so that all processes end at about the same time.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

ONE_INSTALLATION = tuple(
    f"tests/jobs/test_{name}.py" for name in ("broker", "life", "recovery", "imports", "shared_plan")
)
#: Where installations are made.
INSTALLATIONS = ("tests/jobs/", "tests/ops/")
#: The other rooms; whatever is not named comes after them.
ROOMS = ("calibration", "api", "browser", "test_isolation.py", "reference")
#: Of a test that starts workers, its fixtures included: a bound on what hangs, on a machine that does other things too.
HANGS_AFTER_S = 900


def piece_of(nodeid: str) -> str:
    """What a process is dealt at once."""
    file = nodeid.partition("::")[0]
    with_servers = os.environ.get("DATABASE_URL") or os.environ.get("REDIS_URL")
    if file in ONE_INSTALLATION or (with_servers and file.startswith(INSTALLATIONS)):
        return "tests/jobs"
    return file


def place_of(nodeid: str, waiting: bool) -> tuple[bool, int]:
    """Sorts files; equal ones stay as they were collected. `waiting`: for processes of its own."""
    file = nodeid.partition("::")[0]
    if waiting:
        return False, ONE_INSTALLATION.index(file) if file in ONE_INSTALLATION else len(ONE_INSTALLATION)
    room = file.split("/")[1]
    return True, ROOMS.index(room) if room in ROOMS else len(ROOMS)


def uses_database(item: pytest.Item) -> bool:
    """By its marks and fixtures; a test that uses it without either is refused by pytest-django."""
    fixtures = set(getattr(item, "fixturenames", ()))
    marked = any(item.get_closest_marker(name) for name in ("django_db", "worker"))
    return marked or not fixtures.isdisjoint({"db", "transactional_db", "live_server"})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    waiting = {item.path for item in items if "worker" in item.keywords}
    if config.getoption("--database"):
        config.hook.pytest_deselected(items=[item for item in items if not uses_database(item)])
        items[:] = [item for item in items if uses_database(item)]
    items.sort(key=lambda item: place_of(item.nodeid, item.path in waiting))
    for item in items:
        if "worker" in item.keywords and not item.get_closest_marker("timeout"):
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
