"""Where the machine code is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest

from planner.simulation.arrays import Ints
from planner.simulation.kernel import compiled
from planner.simulation.kernel.by_address import Layout, row_of

ROOT = Path(__file__).resolve().parents[3]


def one_more(value: int) -> int:
    return value + 1


def test_the_entry_is_cached_in_the_folder_that_numba_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(one_more, "__qualname__", "one_more")
    assert compiled.entry(one_more)(1) == 2
    (index,) = tmp_path.glob("**/*.nbi")
    assert index.name.startswith("test_compiled.one_more_")


def test_the_name_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed part must not run as old machine code."""
    before = compiled.sources_digest()
    part = tmp_path / "scalar.py"
    part.write_text("changed = True")
    monkeypatch.setattr(compiled.scalar, "__file__", str(part))
    assert compiled.sources_digest() != before


def test_without_a_writable_folder_it_still_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def refusing(*, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", refusing)
    monkeypatch.setattr(one_more, "__qualname__", "one_more")
    assert compiled.entry(one_more)(1) == 2


TINY = """
from planner.simulation.kernel import compiled
def one_more(value):
    return value + 1
run = compiled.entry(one_more)
assert run(1) == 2
print(compiled.cache_folder(), sum(run.stats.cache_hits.values()))
"""


def test_sources_that_nobody_can_write_are_cached_in_the_data_directory(tmp_path: Path) -> None:
    """Where numba would keep machine code beside the sources, and in the user's home, lies a file: not even root can
    make a folder there."""
    tree, data = tmp_path / "tree", tmp_path / "data"
    for package in ("calibration", "planner"):
        shutil.copytree(
            ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__", "static")
        )
    kernel = tree / "planner" / "simulation" / "kernel"
    (kernel / "tiny.py").write_text(TINY)
    (kernel / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    removed = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "PYTHONPATH")
    environment = {key: value for key, value in os.environ.items() if key not in removed}
    environment |= {"HOME": str(tmp_path / "home"), "RIDGELINE_DATA_DIR": str(data)}

    def told() -> list[str]:
        argv = [sys.executable, "-B", "-m", "planner.simulation.kernel.tiny"]
        return subprocess.check_output(argv, cwd=tree, env=environment, text=True).split()

    assert told() == [str(data / "numba"), "0"]
    assert oct((data / "numba").stat().st_mode)[-3:] == "700"
    assert told() == [str(data / "numba"), "1"], "the second process loads what the first compiled"


def test_machine_code_is_good_for_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled.kernel_version()
    monkeypatch.setattr(compiled.llvmlite.binding, "get_host_cpu_name", lambda: "another")
    assert compiled.kernel_version() != before


class Pair(NamedTuple):
    counts: Ints
    table: Ints


PAIR = Layout(Pair, {"counts": np.int64, "table": (np.int32, 2)})
pair_at = row_of(PAIR)


@compiled.inlined
def _add(pair: Pair, row: int, column: int) -> None:
    pair.counts[0] += pair.table[row, column]


def _sum(rows: Ints, number: int) -> int:
    pair = pair_at(rows, number)
    for row in range(pair.table.shape[0]):
        _add(pair, row, 0)
        _add(pair, pair.table[0, 0], 2)
    return int(pair.counts[0])


def test_arrays_reached_by_address_are_the_arrays() -> None:
    pairs = [
        Pair(np.zeros(1, dtype=np.int64), np.arange(1 - k, 7 - k, dtype=np.int32).reshape(2, 3))
        for k in range(2)
    ]
    run = numba.njit(**compiled.OPTIONS)(_sum)
    assert [run(PAIR.rows_of(pairs), k) for k in range(2)] == [1 + 6 + 4 + 6, 0 + 2 + 3 + 2]
    assert [pair.counts[0] for pair in pairs] == [17, 7]
    assert len(_add.overloads) == 1, "a constant or a shorter whole number makes no other machine code"


@pytest.mark.parametrize(
    "table", [np.zeros((2, 3)), np.zeros(6, dtype=np.int32), np.zeros((2, 6), dtype=np.int32)[:, ::2]]
)
def test_other_arrays_than_the_layout_says_are_refused(table: Ints) -> None:
    with pytest.raises(TypeError, match="table is not a contiguous array of 2 dimensions of int32"):
        PAIR.rows_of([Pair(np.zeros(1, dtype=np.int64), table)])


def test_a_layout_names_all_arrays() -> None:
    with pytest.raises(TypeError, match="names other arrays"):
        Layout(Pair, {"counts": np.int64})


def test_every_part_stays_short_enough_to_read() -> None:
    import ast

    for source in sorted(Path(compiled.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 120, f"{source.name}: {node.name}"
