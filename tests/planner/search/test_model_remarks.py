"""Plans for models that are described only: allowed, with flags counted from the config, and saying so."""

from collections.abc import Callable
from typing import Any

import pytest

from calibration.architecture import PRESETS, Architecture, parse_config
from planner.search import SearchSpace, parse_objectives, plan
from planner.search.model_remarks import model_remarks
from planner.serving_engines import vllm
from planner.simulation.knobs import VllmKnobs
from planner.traffic import Traffic
from tests.calibration.configs import CONFIGS

SPACE = SearchSpace((256,), (0,), (16,), max_replicas=2)


def of(family: str) -> Architecture:
    return parse_config(CONFIGS[family])


def test_a_model_that_is_run_here_needs_no_remark() -> None:
    assert model_remarks(PRESETS["llama-3.1-8b"], 8192) == ()


@pytest.mark.parametrize(
    ("family", "max_model_len", "words"),
    [
        ("mistral", 512, ["Windows are not simulated", "all 6 layers", "6 of them need 256 tokens at most"]),
        ("gpt_oss", 512, ["not run here", "3 of them need 32 tokens"]),
        ("llama4", 512, ["5 of them need 64 tokens"]),
        ("qwen3_5_moe", 512, ["state of 3,408 elements", "--kv-cache-memory-bytes"]),
        ("glm_moe_dsa", 512, ["indexer's 96 elements"]),
        ("minimax_m2", 512, ["not run here", "norms of queries and keys span all heads"]),
    ],
)
def test_what_is_left_out_is_said(family: str, max_model_len: int, words: list[str]) -> None:
    said = " ".join(model_remarks(of(family), max_model_len))
    for word in words:
        assert word in said


def test_a_window_that_no_request_leaves_needs_no_remark() -> None:
    assert model_remarks(of("mistral"), 256) == ()


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_flags_state_the_pool_in_the_models_own_bytes(family: str) -> None:
    """All layers with a cache, as vLLM counts the tokens of its pool; of a latent model, the latent."""
    knobs = VllmKnobs(max_num_batched_tokens=256, max_num_seqs=16, num_blocks=99)
    arguments = vllm.flags(knobs, 512, of(family))
    stated = int(arguments[arguments.index("--kv-cache-memory-bytes") + 1])
    assert stated == 100 * 16 * of(family).kv_bytes_per_token()


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "qwen3_5_moe"])
def test_a_plan_for_a_described_model(family: str, traffic: Callable[..., Traffic], model: Any) -> None:
    architecture = of(family)
    result = plan(
        traffic(rate_per_s=2.0), model, 40_000, architecture, parse_objectives(["ttft:p50:2"]), SPACE, refits=2,
        threads=1, max_model_len=1024,
    )  # fmt: skip
    choice = result.verdict.choice
    assert choice is not None
    for remark in model_remarks(architecture, 1024):
        assert remark in result.verdict.remarks
    stated = int(choice.flags[choice.flags.index("--kv-cache-memory-bytes") + 1])
    assert stated == 40_000 // 16 * 16 * architecture.kv_bytes_per_token()
    assert Architecture.from_dict(result.to_dict()["inputs"]["architecture"]) == architecture
