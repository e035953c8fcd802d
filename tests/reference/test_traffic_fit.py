"""Public traces as the fits and the reuse curve see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.traffic import load_traffic
from planner.traffic.fitting import fit
from planner.traffic.reuse import reuse_curve
from planner.traffic.shaping import Parent


def test_azures_code_trace_is_bursts_that_come_and_go(reference_data: Path) -> None:
    """Its CV of 13 and its index of dispersion of 100 and more are those of spells, not of independent gaps."""
    traffic = load_traffic(str(reference_data / "traces" / "azure-2023-code.csv.gz"))
    found = fit(Parent("azure", "azure", traffic))
    assert found.report.chosen == ("on_off", "mixture", "none")
    distances = {one.name: one.distance for one in found.report.comparison.distances}
    assert distances["prompt_tokens"] < 0.05
    assert distances["output_tokens"] < 0.06
    scores = {one.kind: one.score for one in found.report.arrivals}
    assert scores["on_off"] < 0.5 * scores["gamma"] < scores["poisson"]
    rows = {row.name: row for row in found.report.comparison.rows}
    assert rows["interarrival_cv"].ratio == pytest.approx(1, abs=0.25)


def test_the_reuse_of_mooncakes_synthetic_trace(reference_data: Path) -> None:
    traffic = load_traffic(str(reference_data / "traces" / "mooncake-synthetic.jsonl.gz"))
    found = reuse_curve(traffic.prefix_hashes)
    assert (found.requests, found.blocks, found.distinct) == (3_993, 121_877, 43_924)
    assert f"{found.hit_rate[-1]:.3f}" == "0.640"
    half = found.cache_blocks[found.hit_rate >= found.hit_rate[-1] / 2][0]
    assert half * 512 == pytest.approx(3.3e6, rel=0.15)  # tokens of cache that find half of it
