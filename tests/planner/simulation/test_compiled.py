"""Where the machine code is kept."""

from __future__ import annotations

from pathlib import Path

import numba
import pytest

from planner.simulation.kernel import compiled


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
    before = compiled._digest()
    part = tmp_path / "scalar.py"
    part.write_text("changed = True")
    monkeypatch.setattr(compiled.scalar, "__file__", str(part))
    assert compiled._digest() != before


def test_without_a_writable_folder_it_still_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def refusing(*, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", refusing)
    monkeypatch.setattr(one_more, "__qualname__", "one_more")
    assert compiled.entry(one_more)(1) == 2


def test_every_part_stays_short_enough_to_read() -> None:
    import ast

    for source in sorted(Path(compiled.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 120, f"{source.name}: {node.name}"
