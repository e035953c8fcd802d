"""What a plan's page says of each objective: that it holds, and how sure that is."""

from __future__ import annotations

from typing import Any

import pytest

from calibration.templatetags.units import signs
from planner.result_closer import breaks_sentence
from planner.result_page import ObjectiveRow, objective_rows


def row(**values: Any) -> ObjectiveRow:
    stored = {"metric": "ttft", "percentile": 95.0, "limit": 2.0, "predicted": 1.5, "low": 1.0, "high": 1.9,
              "probability": 0.97, "margin": 0.25, "claimed": True, "samples": 300, "requests": 300}  # fmt: skip
    result = {"verdict": {"binding": "ttft:p95", "alone": None}}
    return objective_rows(result, {"objectives": [stored | values]})[0]


@pytest.mark.parametrize(
    ("values", "badge", "words"),
    [
        ({}, "done", "holds, P 0.97"),
        ({"high": 2.905, "probability": 0.83}, "interrupted", "holds, P 0.83"),
        ({"high": 2.905}, "interrupted", "holds, P 0.97"),
        ({"high": None}, "interrupted", "holds, P 0.97"),
        ({"probability": 0.8}, "interrupted", "holds, P 0.80"),
        ({"claimed": False}, "interrupted", "holds, not claimed, P 0.97"),
        ({"predicted": 2.1, "probability": 0.4}, "failed", "exceeded, P 0.40"),
        ({"predicted": None, "low": None, "high": None, "probability": None}, "interrupted", "no latency"),
        ({"low": None, "high": None, "probability": None}, "done", "holds"),
    ],
)
def test_the_badge_tells_how_sure(values, badge, words) -> None:
    told = row(**values)
    assert (told.badge, told.words) == (badge, words)


def test_what_fails_first_under_more_load_may_be_another_than_what_is_tightest_now() -> None:
    breaking = {"points": [1], "holds_up_to": 1.35, "breaks_at": 1.36, "first": "ttft:p95"}
    said = breaks_sentence(breaking, "itl:p99")
    assert said.endswith(
        "TTFT p95 fails first, before ITL p99, which is the tightest at the load planned for."
    )
    assert breaks_sentence(breaking, "ttft:p95").endswith("at 1.36 times TTFT p95 fails first.")


def test_numbers_in_sentences_have_one_sign() -> None:
    assert signs("all step times x 0.9 (-10 %)") == "all step times x 0.9 (−10 %)"
    assert (
        signs("5-10 requests, llama-3.1, sm_80-sm_90, <= 3") == "5-10 requests, llama-3.1, sm_80-sm_90, ≤ 3"
    )
