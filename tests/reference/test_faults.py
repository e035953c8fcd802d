"""The fault files d01 to d10, answered as expected.json says (the sentence is repeated at each test)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.traffic import BenchmarkResult, Finding, Traffic, TrafficError, read_traffic, statistics


@pytest.fixture(scope="module")
def faults(reference_data: Path) -> Path:
    return reference_data / "faults"


def found(traffic: Traffic, code: str) -> Finding:
    (finding,) = [finding for finding in traffic.warnings if finding.code == code]
    return finding


def refused(path: Path, **options: Any) -> TrafficError:
    with pytest.raises(TrafficError) as caught:
        read_traffic(path, **options)
    return caught.value


def test_d01_seven_digits_and_crlf(faults: Path) -> None:
    """4 requests; offsets 0, 0.052, 0.5200001, 3.0 s; no carriage return in the last column; row 4 has one
    output token."""
    traffic = read_traffic(faults / "d01_azure_7digits_crlf.csv")
    assert traffic.arrival_s.tolist() == [0.0, 0.052, 0.5200001, 3.0]
    assert traffic.output_tokens.tolist() == [12, 7, 33, 1]
    assert found(traffic, "single_token_output").lines == (5,)


def test_d02_milliseconds_on_a_grid(faults: Path) -> None:
    """Duration 12 s, not 12000 s; warn that 20 requests share 5 timestamps (3 s grid) and offer spreading
    inside the tick; both results must be labelled."""
    path = faults / "d02_mooncake_ms_grid.jsonl"
    traffic = read_traffic(path)
    assert traffic.duration_s == 12.0
    message = found(traffic, "time_grid").message
    assert "20 requests share 5 time stamps, every 3 s" in message
    assert "spread_grid" in message
    spread = read_traffic(path, spread_grid=True)
    assert len(np.unique(spread.arrival_s)) == 20
    assert (spread.arrival_s - traffic.arrival_s).max() < 3.0
    assert found(spread, "grid_spread").count == 15
    assert spread.recipe["spread_grid"]["tick_s"] == 3.0


def test_d03_semicolons_decimal_commas_and_a_thousands_point(faults: Path) -> None:
    """Delimiter ;, decimal comma, BOM stripped; 1.200 is 1200 tokens: ask or reject with row number, never
    1.2."""
    path = faults / "d03_excel_eu_bom_semicolon.csv"
    (problem,) = refused(path).errors
    assert (problem.line, problem.column) == (4, "input_length")
    assert "1200" in problem.message


def test_d03_without_the_thousands_point_is_read(faults: Path, tmp_path: Path) -> None:
    content = (faults / "d03_excel_eu_bom_semicolon.csv").read_bytes().replace(b"1.200", b"1200")
    (tmp_path / "d03.csv").write_bytes(content)
    traffic = read_traffic(tmp_path / "d03.csv")
    assert traffic.arrival_s.tolist() == [0.0, 1.5, 2.25]
    assert traffic.prompt_tokens.tolist() == [512, 1024, 1200]


def test_d04_failures_duplicates_and_two_models(faults: Path) -> None:
    """5 rows read; 2 rows with 0 response tokens reported as failures and excluded by default from output
    statistics (arrivals option kept); exact duplicate kept and reported; Total tokens not used as prompt
    length; two models flagged."""
    path = faults / "d04_burstgpt_failures.csv"
    traffic = read_traffic(path)
    figures = statistics(traffic)
    assert figures["rows"] == 5
    assert figures["output_tokens"]["mean"] == pytest.approx((18 + 276 + 276) / 3)
    failures = found(traffic, "zero_output")
    assert (failures.count, failures.lines) == (2, (3, 6))
    assert found(traffic, "duplicate").lines == (5,)
    assert traffic.prompt_tokens.tolist() == [472, 417, 417]
    assert "ChatGPT" in found(traffic, "several_models").message
    kept = read_traffic(path, zero_outputs="keep_arrival")
    assert kept.arrival_s.tolist() == [0, 40, 113, 113, 195]


def test_d05_single_token_outputs(faults: Path) -> None:
    """TPOT/ITL population = 2 requests (outputs 2 and 50); never 0, NaN or a division error for the others;
    counts shown."""
    traffic = read_traffic(faults / "d05_single_token_outputs.jsonl")
    assert statistics(traffic)["tpot_requests"] == 2
    assert found(traffic, "single_token_output").count == 1
    assert found(traffic, "zero_output").count == 1


def test_d06_prompts_longer_than_the_model(faults: Path) -> None:
    """With max_model_len 8192: rows 2..5 rejected (input+output > 8192) with row numbers and count 4; row 1
    accepted (8192); never truncated silently."""
    traffic = read_traffic(faults / "d06_prompt_longer_than_model.csv", max_model_len=8192)
    assert (traffic.prompt_tokens.tolist(), traffic.output_tokens.tolist()) == ([8191], [1])
    finding = found(traffic, "longer_than_model")
    assert (finding.count, finding.lines) == (4, (3, 4, 5, 6))
    assert "rows 2-5" in finding.message


def test_d07_not_finite_negative_and_broken(faults: Path) -> None:
    """400 with line numbers for lines 2-6, 8, 9 (line 4: offset rule stated); line 7: 10.5 rejected, "12"
    accepted or rejected by a written rule; never 500."""
    error = refused(faults / "d07_nonfinite_negative.jsonl")
    assert [problem.line for problem in error.errors] == [2, 3, 4, 5, 6, 7, 7, 8, 9]
    messages = {problem.line: problem.message for problem in error.errors}
    assert "count from the start of the trace" in messages[4]
    assert "text in quotes" in messages[7]
    assert any("10.5" in problem.message for problem in error.errors)
    json.dumps(error.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("start", "code", "words"),
    [
        # retokenized 0, TTFT 0, ITL 0; Infinity accepted as unlimited
        ("d08", "nothing_measured", ("TTFT", "ITL", "counted again", "refused as a measurement")),
        # (e2e - ttft) / (out - 1) = 0.01584 s against 0.007516 s: factor 2.1; reject the ITL, offer the TPOT
        ("d09", "identity_fails", ("15.84 ms", "7.516 ms", "factor of 2.1", "not used; take 15.84 ms")),
        # the client did not offer the stated load (58 %); a closed-loop number
        ("d10", "closed_loop", ("did not offer", "58 %", "closed-loop", "open-loop SLO")),
    ],
)
def test_d08_to_d10_are_results_and_no_traces(
    faults: Path, start: str, code: str, words: tuple[str, ...]
) -> None:
    (path,) = faults.glob(f"{start}*")
    error = refused(path)
    assert isinstance(error, BenchmarkResult)
    assert error.errors[0].code == "benchmark_result"
    (problem,) = [problem for problem in error.errors if problem.code == code]
    assert all(word in problem.message for word in words), problem.message
    json.dumps(error.to_dict(), allow_nan=False)
