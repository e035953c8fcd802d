"""What the import report says about files that could be read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from planner.traffic import Finding, Traffic, TrafficError, read_traffic, spread_grid, statistics


def read(rows: list[str], **options: Any) -> Traffic:
    content = "\n".join(["arrived_at,prompt_tokens,output_tokens", *rows]) + "\n"
    return read_traffic(io.BytesIO(content.encode()), **{"time_unit": "s", **options})


def found(traffic: Traffic, code: str) -> Finding:
    (finding,) = [finding for finding in traffic.warnings if finding.code == code]
    return finding


def test_clean_rows_have_nothing_to_report() -> None:
    assert read(["0,5,2", "1.5,5,2", "2,6,3"]).warnings == ()


def test_rows_out_of_order_are_sorted_stably_and_reported() -> None:
    traffic = read(["5,1,9", "3,2,9", "5,3,9", "3,4,9", "7,5,9"])
    assert traffic.arrival_s.tolist() == [0, 0, 2, 2, 4]
    assert traffic.prompt_tokens.tolist() == [2, 4, 1, 3, 5]
    finding = found(traffic, "unsorted")
    assert (finding.count, finding.lines) == (2, (3, 5))
    assert "2 s" in finding.message


def test_failed_requests_are_left_out_and_listed() -> None:
    traffic = read(["5,10,0", "6,20,3", "7,30,0", "8,40,4"])
    assert (traffic.rows_read, traffic.requests) == (4, 2)
    assert traffic.arrival_s.tolist() == [0.0, 2.0]
    finding = found(traffic, "zero_output")
    assert (finding.count, finding.lines) == (2, (2, 4))
    assert "rows 1, 3" in finding.message
    figures = statistics(traffic)
    assert (figures["rows"], figures["requests"]) == (4, 2)


def test_the_arrivals_of_failed_requests_can_be_kept() -> None:
    traffic = read(["5,10,0", "6,20,3"], zero_outputs="keep_arrival")
    assert traffic.output_tokens.tolist() == [1, 3]
    assert found(traffic, "zero_output_kept").lines == (2,)
    assert traffic.recipe["options"]["zero_outputs"] == "keep_arrival"


def test_prompts_longer_than_the_model_are_left_out_and_never_cut() -> None:
    traffic = read(["0,8191,1", "1,8192,1", "2,8000,500", "3,1,1", "4,9000,1"], max_model_len=8192)
    assert traffic.prompt_tokens.tolist() == [8191, 1]
    finding = found(traffic, "longer_than_model")
    assert (finding.count, finding.lines) == (3, (3, 4, 6))
    assert "rows 2-3, 5" in finding.message


def test_the_sum_is_taken_in_full_precision() -> None:
    assert read(["0,100000000,100000000", "1,1,1"], max_model_len=2**30).requests == 2


def test_without_any_request_left_the_file_is_refused_with_the_reasons() -> None:
    with pytest.raises(TrafficError, match=r"no output tokens.*max_model_len"):
        read(["0,10,0", "1,100,100"], max_model_len=50)


def test_empty_prompts_are_left_out_and_listed() -> None:
    traffic = read(["0,0,5", "1,2,5", "2,0,0"])
    assert traffic.requests == 1
    assert found(traffic, "zero_prompt").lines == (2,)
    assert found(traffic, "zero_output").lines == (4,)


def test_single_token_outputs_are_counted() -> None:
    traffic = read(["0,5,1", "1,5,2", "2,5,1"])
    assert found(traffic, "single_token_output").lines == (2, 4)
    assert statistics(traffic)["tpot_requests"] == 1


def test_exact_duplicates_are_kept_and_reported() -> None:
    traffic = read(["0,5,2", "1,5,2", "1,6,2", "1,5,2", "1,5,3", "1,5,2"])
    assert traffic.requests == 6
    assert found(traffic, "duplicate").lines == (5, 7)


def test_a_time_grid_is_noticed_and_can_be_spread() -> None:
    rows = [f"{3 * tick},{100 + i},5" for tick in (0, 1, 2, 20) for i in range(3)]
    traffic = read(rows)
    assert "12 requests share 4 time stamps, every 3 s" in found(traffic, "time_grid").message
    spread = spread_grid(traffic)
    assert spread.arrival_s.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 60, 61, 62]
    assert np.array_equal(spread.prompt_tokens, traffic.prompt_tokens)
    assert found(spread, "grid_spread").count == 8
    assert spread.recipe["spread_grid"] == {"tick_s": 3.0}
    assert read(rows, spread_grid=True).arrival_s.tolist() == spread.arrival_s.tolist()


def test_spreading_leaves_traffic_without_shared_stamps_alone() -> None:
    traffic = read(["0,5,2", "1,5,2"])
    assert spread_grid(traffic) is traffic
    together = read(["1,5,2", "1,6,2"])
    assert spread_grid(together) is together


def test_whole_second_stamps_are_noticed_where_they_matter() -> None:
    often = read([f"{i // 2 * 2 + i % 2},{i + 1},5" for i in range(60)])
    assert found(often, "whole_seconds").count == 60
    seldom = read([f"{100 * i},{i + 1},5" for i in range(60)])
    assert "whole_seconds" not in [finding.code for finding in seldom.warnings]


def test_an_impossible_rate_asks_for_the_unit() -> None:
    traffic = read([f"{i / 10_000},{i + 1},5" for i in range(60)])
    assert "unit" in found(traffic, "high_rate").message


def test_blank_lines_between_rows_are_reported_and_at_the_end_are_not() -> None:
    traffic = read(["0,5,2", "", "1,5,2", "", "", ""])
    assert (found(traffic, "blank_lines").count, found(traffic, "blank_lines").lines) == (1, (3,))
    assert "blank_lines" not in [finding.code for finding in read(["0,5,2", "", ""]).warnings]


def hashed(rows: list[tuple[int, list[int]]]) -> Traffic:
    lines = [
        f'{{"timestamp": {i}, "input_length": {prompt}, "output_length": 2, "hash_ids": {hashes}}}'
        for i, (prompt, hashes) in enumerate(rows)
    ]
    return read_traffic(io.BytesIO("\n".join(lines).encode()), time_unit="s")


def test_the_block_size_is_found_from_the_lengths() -> None:
    traffic = hashed([(17, [1, 2]), (16, [1]), (32, [1, 2])])
    assert traffic.prefix_hashes is not None
    assert traffic.prefix_hashes.block_tokens == 16
    assert traffic.warnings == ()


def test_a_wrong_number_of_hashes_is_listed() -> None:
    traffic = hashed([(17, [1, 2]), (16, [1]), (32, [1, 2]), (33, [1])])
    assert traffic.prefix_hashes is not None
    assert found(traffic, "hash_ids_length").lines == (4,)


def test_hashes_that_fit_no_block_size_are_left_out() -> None:
    traffic = hashed([(1_000_000, [1, 2, 3]), (5_000_000, [1]), (7, [1, 2, 3, 4, 5, 6, 7, 8, 9])])
    assert traffic.prefix_hashes is None
    assert found(traffic, "hash_ids_left_out").count == 3


def test_hashes_follow_their_request_through_sorting_and_leaving_out() -> None:
    content = (
        '{"timestamp": 9, "input_length": 20, "output_length": 2, "hash_ids": [1, 2]}\n'
        '{"timestamp": 8, "input_length": 40, "output_length": 0, "hash_ids": [3, 4, 5]}\n'
        '{"timestamp": 7, "input_length": 16, "output_length": 2, "hash_ids": [6]}\n'
        '{"timestamp": 6, "input_length": 33, "output_length": 2, "hash_ids": [7, 8, 9]}\n'
    )
    traffic = read_traffic(io.BytesIO(content.encode()), time_unit="s")
    assert traffic.prefix_hashes is not None
    assert traffic.prefix_hashes.flat.tolist() == [7, 8, 9, 6, 1, 2]
    assert traffic.prefix_hashes.offsets.tolist() == [0, 3, 4, 6]
    assert traffic.prompt_tokens.tolist() == [33, 16, 20]


def test_a_report_lists_fifty_lines_and_counts_all() -> None:
    traffic = read([f"{i + i / 7},5,1" for i in range(200)])
    finding = found(traffic, "single_token_output")
    assert (finding.count, len(finding.lines)) == (200, 50)
    assert finding.to_dict()["lines"][:2] == [2, 3]
