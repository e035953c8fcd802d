"""vLLM's log of iterations: read as documented, contexts within their bounds, errors with their line."""

import importlib.util
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from calibration.pipeline import fit_samples
from calibration.sources.step_csv import StepCsvError
from calibration.sources.vllm_contexts import LogError, _shapes, samples_of_log
from calibration.sources.vllm_log import read_vllm_log
from calibration.steptime import features_of

_spec = importlib.util.spec_from_file_location("vllm_server", Path(__file__).with_name("vllm_server.py"))
server = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(server)

OLD = (
    "(EngineCore_DP0 pid=2010410) INFO 12-22 21:44:40 [core.py:349] Iteration({}): {} context requests, {} context "
    "tokens, {} generation requests, {} generation tokens, iteration elapsed time: {} ms"
)


def read(text):
    return read_vllm_log(io.BytesIO(text.encode()))


def log_of(*steps, tail=""):
    return "\n".join(OLD.format(index, *step) + tail for index, step in enumerate(steps))


def test_both_published_forms_are_read_with_what_else_the_log_says() -> None:
    log = read(server.serve(requests=5).text)
    assert (log.version, log.kv_tokens, log.budget_tokens) == ("0.27.1", 60_000, 512)
    assert log.prefix_caching is False
    assert log.steps[0].engine == "000"
    assert log.steps[-1].usage is not None
    (step,) = read(log_of((0, 0, 20, 20, "10.99"))).steps
    assert (step.engine, step.index, step.generation_requests, step.seconds) == (
        "EngineCore_DP0",
        0,
        20,
        0.01099,
    )
    assert step.usage is None
    image = ", GPU KV cache usage: 1.0%, encoder inputs: 4, encoder output embeddings: 3520"
    assert read(log_of((1, 10, 0, 0, "5.00"), tail=image)).steps[0].encoder_inputs == 4


@pytest.mark.parametrize("usage", [True, False])
def test_contexts_are_within_their_bounds(usage) -> None:
    """Every usable step's sum of contexts, against what the server really had."""
    served = server.serve(requests=80, usage=usage)
    log = read(served.text)
    found = samples_of_log(log)
    assert found.used > (0.9 if usage else 0.2) * found.logged
    pairs = [
        (shape.features[3], served.shapes[step.index].features[3], doubt)
        for step, shape, doubt in _shapes(list(log.steps), 512, 60_000, 16, Counter())
        if step.generation_requests
    ]
    known, true, doubt = np.array(pairs).T
    assert (
        np.mean(np.abs(known - true) <= doubt * known + 0.02 * known + 1) > 0.98
    )  # 2 %: the grid of contexts
    assert np.median(np.abs(known / true - 1)) < 0.015
    assert abs(np.mean(known / true - 1)) < 0.02
    assert found.doubt[1] <= 0.25
    assert "bounded by" in found.remarks[0]


@pytest.mark.parametrize("usage", [True, False])
def test_the_law_behind_a_log_is_found_again(usage) -> None:
    served = server.serve(requests=120, usage=usage, noise=0.01, seed=3, rate=4.0 if usage else 1.5)
    found = samples_of_log(read(served.text))
    result = fit_samples(found.samples, device="a GPU", kv_tokens=60_000)
    assert result.published, result.reason
    shapes = served.shapes[:: max(1, len(served.shapes) // 300)]
    predicted = result.model.predict_s(features_of(shapes))
    errors = np.abs(predicted / np.array([server.law(s) for s in shapes]) - 1)
    assert np.median(errors) < 0.03
    assert np.percentile(errors, 90) < 0.10


def test_a_log_that_begins_later_uses_what_it_can_know() -> None:
    """Without the pool's share nothing is known before the server is empty once; with it, at once."""
    late = samples_of_log(read(server.serve(requests=60, usage=False, rate=2.0, first=40).text))
    assert any("began before the log" in reason for reason in late.left_out)
    assert late.used > 0
    assert samples_of_log(read(server.serve(requests=60, first=40).text)).used > 0.8 * 40


def test_a_prompt_that_the_budget_cuts_is_followed() -> None:
    """300 tokens with a budget of 128: chunks after 0, 128 and 256, the last of 44 completes; then context 300."""
    text = "max_num_batched_tokens=128\n" + log_of(
        (1, 128, 0, 0, "3"), (1, 128, 0, 0, "4"), (1, 44, 0, 0, "2"), (0, 0, 1, 1, "1"), (0, 0, 1, 1, "1")
    )
    shapes = [sample.shape for sample in samples_of_log(read(text), 10_000).samples]
    assert [(c.query_tokens, c.samples) for s in shapes for c in s.chunks] == [
        (128, False),
        (128, False),
        (44, True),
    ]
    assert [s.chunks[0].cached_tokens for s in shapes[:3]] == [0, 127, 259]  # on a grid of 3 %
    assert shapes[3].decode_contexts[0] == pytest.approx(300, rel=0.015)


def test_asynchronous_times_are_refused() -> None:
    with pytest.raises(LogError, match="--no-async-scheduling"):
        samples_of_log(read(server.serve(requests=80, timer=0.1).text))
    with pytest.raises(LogError, match="asynchronous"):
        samples_of_log(
            read("Asynchronous scheduling is enabled.\n" + log_of((1, 9, 0, 0, "5"), (0, 0, 1, 1, "5")))
        )


def test_host_time_between_steps_is_kept_apart() -> None:
    found = samples_of_log(read(server.serve(requests=80).text))
    assert 0.9 < found.timed_share < 1.05
    assert found.host_gap_s < 0.002


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (
            lambda lines: [*lines[:1], lines[1].replace("context tokens", "ctx tokens"), *lines[2:]],
            2,
            "not one that is",
        ),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3, "repeated or out of order"),
        (
            lambda lines: [lines[0].replace("10 context tokens", "0 context tokens"), *lines[1:]],
            1,
            "fewer tokens",
        ),
        (lambda lines: [*lines[:2], lines[2].replace(" ms", " s")], 3, "not one that is known"),
        (lambda lines: [*lines[:2], lines[2] + ", GPU KV cache usage: 140.0%"], 3, "used to 140"),
    ],
)
def test_errors_name_their_line(change, line, words) -> None:
    lines = log_of((2, 10, 0, 0, "5.00"), (0, 0, 2, 2, "3.00"), (0, 0, 2, 2, "3.10")).split("\n")
    with pytest.raises(StepCsvError) as caught:
        read("\n".join(change(lines)))
    assert caught.value.problems[0].line == line
    assert words in str(caught.value)


def test_what_is_no_log_says_which_flag() -> None:
    with pytest.raises(StepCsvError, match="--enable-logging-iteration-details"):
        read("hello\nworld")


def test_speculation_and_dummy_ranks_are_counted_and_left_out() -> None:
    steps = [(1, 10, 0, 0, "5.00"), (0, 0, 1, 3, "3.00")]
    found = samples_of_log(read(log_of(*steps)), 1_000)
    assert found.left_out == {
        "with several tokens per decode (speculation, or recomputing after a preemption)": 1
    }
    with pytest.raises(LogError, match="1 dummy"):
        samples_of_log(read(log_of((0, 0, 0, 0, "1.00"), tail=" (dummy)")), 1_000)
