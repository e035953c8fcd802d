"""replay_check on runs whose truth is known: the simulator's own, with a law of step times of our choice."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from calibration.steptime import linear_model
from planner.simulation import kernel
from planner.simulation.knobs import VllmKnobs
from planner.simulation.recorded_run import read_recorded_run
from planner.simulation.replay import BARS, BARS_ALL, BOTH, replay_check

GAP_S = 0.001
BLOCKS, BLOCK = 120, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 requests on a device with linear step times, 1 ms of host time a step, scheduled synchronously; the table
    of step times lacks the host time."""
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(4)
    count = 120
    arrival = np.cumsum(rng.exponential(0.012, count))
    prompts, outputs = rng.integers(20, 300, count), rng.integers(1, 60, count)
    knobs = VllmKnobs(256, 32, BLOCKS, BLOCK, async_scheduling=False, prefix_caching=True)
    law = linear_model(0.005, token_s=2e-5, row_s=5e-5, decode_context_s=2e-7, pair_s=1e-9)
    outcome = kernel.simulate(arrival, prompts, outputs, None, knobs, law, host_gap_s=GAP_S)
    assert outcome.preemptions.sum() > 0
    stamps = zip(arrival, outcome.first_token_s, outcome.done_s, strict=True)
    with (folder / "requests.jsonl").open("w") as file:
        for i, (queued_s, first_s, last_s) in enumerate(stamps):
            line = {"request_id": i, "input_toks": int(prompts[i]), "output_toks": int(outputs[i])}
            line |= {
                "queued_ts": queued_s + 5.0,
                "first_token_ts": first_s + 5.0,
                "last_token_ts": last_s + 5.0,
            }
            file.write(json.dumps(line) + "\n")
    meta = {"engine_kwargs": {"max_num_seqs": 32, "max_num_batched_tokens": 256, "async_scheduling": False}}
    meta["kv_cache"] = {"block_size": BLOCK, "num_gpu_blocks": BLOCKS + 1}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "steps.csv").write_text(table())
    return folder


def table() -> str:
    lines = ["prefill_tokens,prefill_context,decode_seqs,decode_context,step_s"]
    tokens, prefixes, rows, contexts = (0, 16, 64, 128, 255), (0, 64, 300), (0, 1, 4, 16, 32), (16, 100, 400)
    for q, p, b, c in itertools.product(tokens, prefixes, rows, contexts):
        if (q or b) and (q or not p) and q + b <= 256 and (b or c == contexts[0]):
            context = c if b else 0
            seconds = 0.005 + 2e-5 * (q + b) + 5e-5 * b + 2e-7 * b * context
            seconds += 1e-9 * (q * p + q * (q + 1) // 2)
            lines.append(f"{q},{p},{b},{context},{seconds!r}")
    return "\n".join(lines) + "\n"


def test_a_run_is_predicted_from_a_few_step_times(folder: Path) -> None:
    check = replay_check(read_recorded_run(folder), points=40, seeds=2, host_gap_s=GAP_S)
    assert check.failures == []
    assert (check.fitted, check.seeds) == (40, 2)
    assert check.within == BARS
    deciding = [variant for variant in check.variants if variant.decides]
    assert [variant.label for variant in deciding] == ["sync, host gap 1 ms"]  # as recorded
    assert all(abs(comparison.worst) < 0.02 for comparison in deciding[0].comparisons)
    assert len(check.variants) == 8  # both ways, all host gaps


def test_a_missing_millisecond_is_seen(folder: Path) -> None:
    check = replay_check(read_recorded_run(folder), points=None, scheduling=BOTH)
    assert check.seeds == 1
    assert check.fitted == check.candidates
    assert check.within == BARS_ALL
    assert any(failure.startswith("sync, host gap 0 ms: tpot mean -") for failure in check.failures)
    assert any(failure.startswith("async, host gap 0 ms") for failure in check.failures)


def test_a_gap_of_its_own_is_added_to_those_that_are_shown(folder: Path) -> None:
    check = replay_check(read_recorded_run(folder), points=40, seeds=1, host_gap_s=0.0007)
    assert len(check.variants) == 10
    assert [variant.host_gap_s for variant in check.variants if variant.decides] == [0.0007]


def ask(folder: Path, *options: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("replay_check", str(folder), "--samples", "40", "--seeds", "1", *options, stdout=out)
    except SystemExit as left:
        return int(str(left.code)), out.getvalue()
    return 0, out.getvalue()


def test_the_command_prints_all_and_exits_by_the_bars(folder: Path) -> None:
    code, text = ask(folder, "--host-gap-ms", "1")
    assert code == 0
    assert "within ttft 5.00%, tpot 4.00%, e2e 4.00%: sync, host gap 1 ms" in text
    assert "async, host gap 1.5 ms" in text
    code, text = ask(folder, "--within", "ttft=0.5,tpot=0.001", "--json")
    assert code == 1
    assert "outside: sync, host gap 0 ms: tpot mean -" in text
    told: dict[str, Any] = json.loads(text.splitlines()[-1])
    assert told["within"] == {"ttft": 0.5, "tpot": 0.001, "e2e": 0.04}
    assert told["statistics"] == ["mean", "p50", "p90", "p95", "p99"]
    assert len(told["variants"]) == 8
    assert told["failures"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--within", "ttft"), "--within must look like"),
        (("--within", "itl=0.1"), "--within must look like"),
        (("--samples", "few"), "--samples must be all, or"),
        (("--samples", "5"), "--samples must be all, or"),
        (("--host-gap-ms", "-1"), "--host-gap-ms must be from 0"),
        (("--seeds", "0"), "--seeds must be from 1"),
    ],
)
def test_the_command_refuses_what_it_cannot_read(
    folder: Path, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        ask(folder, *options)
    assert caught.value.returncode == 2


def test_the_command_names_what_is_wrong_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=rf"{tmp_path}/meta\.json: is missing") as caught:
        ask(tmp_path)
    assert caught.value.returncode == 2


def test_what_cannot_be_compared_is_said_and_is_null_in_json(folder: Path, tmp_path: Path) -> None:
    """One request of a single token, whose stamps have whole seconds only."""
    for name in ("meta.json", "steps.csv"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    line = {"request_id": 0, "input_toks": 30, "output_toks": 1}
    line |= {"queued_ts": 5, "first_token_ts": 5, "last_token_ts": 5}
    (tmp_path / "requests.jsonl").write_text(json.dumps(line))
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("replay_check", str(tmp_path), "--seeds", "1", "--samples", "all", "--json", stdout=out)
    text = out.getvalue()
    told = json.loads(text.splitlines()[-1], parse_constant=pytest.fail)
    assert "ttft p50 cannot be compared: it was measured as 0 s" in text
    assert not [failure for failure in told["failures"] if "tpot" in failure]
    assert told["variants"][0]["comparisons"][1]["errors"] == [None] * 5


@pytest.mark.parametrize("samples", ["²", "9" * 500, "-5", "80.0"])
def test_samples_that_are_no_number(folder: Path, samples: str) -> None:
    with pytest.raises(CommandError, match="--samples must be all, or a whole number"):
        call_command("replay_check", str(folder), f"--samples={samples}")
