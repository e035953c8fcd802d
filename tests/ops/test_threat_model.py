"""THREAT_MODEL.md names tests that exist; and two promises of it that the source itself can show."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "THREAT_MODEL.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", DOCUMENT)
PACKAGES = ("config", "accounts", "calibration", "planner")
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CLIENTS = {"requests", "httpx", "aiohttp", "urllib3", "urllib.request", "http.client", "ftplib", "smtplib"}
# Asks the server it started itself whether it is up, on its own address.
OWN_SERVER = {"config/tree.py"}
GUARDED = {"calibration/sources/outbound.py", "planner/verification/load.py"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def imported(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_the_tests_it_names_exist(path, name):
    assert f"def {name}(" in (ROOT / path).read_text()


def test_every_row_has_its_test():
    rows = DOCUMENT.split("\n## Rows\n")[1].split("\n## ")[0].splitlines()
    rows = [row for row in rows if row.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        assert "::test_" in row, row


def test_nothing_here_unpickles():
    for path, module in sources():
        assert not imported(module) & PICKLES, path
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "eval", "exec", "yaml.load"), f"{path}:{node.lineno}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", path


def test_only_the_guarded_client_fetches():
    """load.py streams through the sessions that outbound.py makes; nobody makes one of their own."""
    found = {path for path, module in sources() if imported(module) & CLIENTS}
    assert found == OWN_SERVER | GUARDED
    for path, module in sources():
        made = {ast.unparse(node.func) for node in ast.walk(module) if isinstance(node, ast.Call)}
        assert path == "calibration/sources/outbound.py" or "aiohttp.ClientSession" not in made, path
