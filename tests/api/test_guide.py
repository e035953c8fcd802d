"""The guide to the API names every address there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.api import api

GUIDE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


@pytest.mark.parametrize("path", sorted(api.get_openapi_schema()["paths"]))
def test_the_guide_names_every_address(path: str) -> None:
    parts = re.sub(r"\{pk\}", "{id}", path.removeprefix("/api/v1/"))
    rows = [row for row in GUIDE.splitlines() if row.startswith("| `")]
    whole = any(re.search(rf"[` ]{re.escape(parts)}`", row) for row in rows)
    *base, last = parts.split("/")
    short = re.compile(rf"`(GET |POST )?{re.escape(last)}`")
    beside = any("/".join(base) in row and short.search(row) for row in rows)
    assert whole or beside, parts


# The examples ---------------------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
CALL = re.compile(
    r"\bjson (?P<json>[\w$/-]+)|\bapi (?P<words>[^|\n]*?)\"?\$RIDGELINE/api/v1/(?P<path>[\w$/-]+)"
    r"|\bended (?P<job>[\w$/-]+)"
)
GIVEN = {"1", "2", "@"}  # a function's own


def code(block: str) -> str:
    """Without the comments, which may speak of anything."""
    return "\n".join(re.sub(r"(^|\s)# .*", "", line) for line in block.splitlines())


def calls(block: str) -> Iterator[tuple[str, str]]:
    """(method, address) of each example."""
    for found in CALL.finditer(code(block)):
        if found["job"]:
            yield "get", found["job"]
        elif found["json"]:
            yield "post", found["json"]
        else:
            method = re.search(r"-X (\w+)", found["words"])
            yield (
                method[1].lower() if method else "post" if "-F " in found["words"] else "get",
                found["path"],
            )


def pattern(path: str) -> str:
    """Of an example's address: ids are variables, other parts are words."""
    return re.sub(r"\{\w+\}", r"[\\w-]+", path.replace("{pk}", r"\$\w+"))


def test_every_example_is_an_operation() -> None:
    operations = api.get_openapi_schema()["paths"]
    every = [call for block in BLOCKS for call in calls(block)]
    assert len(every) > 30
    for method, address in every:
        if address == "$1":  # of the function that waits for jobs
            continue
        found = [path for path in operations if re.fullmatch(pattern(path), f"/api/v1/{address}")]
        assert found and method in operations[found[0]], (method, address)


def test_a_guide_that_is_wrong_would_be_found() -> None:
    assert list(calls("api -X PUT -d x $RIDGELINE/api/v1/plans/$P/nothing  # api $RIDGELINE/api/v1/me")) == [
        ("put", "plans/$P/nothing")
    ]
    assert list(calls("X=$(json plans/$P/a '{}' | of id)\nended plans/$X")) == [
        ("post", "plans/$P/a"),
        ("get", "plans/$X"),
    ]
    assert unassigned(["A=1; echo $A $B", "B=2"]) == ["B"]


def unassigned(blocks: list[str]) -> list[str]:
    """Variables that are used before a line that assigns them."""
    assigned, missing = set(GIVEN), []
    for line in "\n".join(code(block) for block in blocks).splitlines():
        here = set(re.findall(r"(?:^|[\s;])([A-Z]+)=", line))
        missing += [name for name in re.findall(r"\$(\w+|@)", line) if name not in assigned | here]
        assigned |= here
    return missing


def test_every_variable_is_assigned_before_it_is_used() -> None:
    assert unassigned(BLOCKS) == []
