"""One installation for the job tests, and the models they measure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.jobs.stack import Stack, running

# A llama small enough that a whole calibration takes seconds. Its times are of Python, not of a model: whether
# the gate publishes them is chance, and no test here asks.
TINY: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "attention_bias": False,
}  # fmt: skip
ENVELOPE = {"max_batch": 4, "max_context_tokens": 64, "max_step_tokens": 32}
REQUEST = {"config": TINY, "kv_tokens": 1024, **ENVELOPE}
# Long enough to be caught at work: a larger model of the same family.
LONGER = REQUEST | {"config": TINY | {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("jobs")) as installation:
        yield installation


@pytest.fixture
def device(stack: Stack) -> Stack:
    """With the device worker up."""
    if "device" not in stack.processes:
        stack.start("device")
    return stack


@pytest.fixture
def no_device(stack: Stack) -> Stack:
    if "device" in stack.processes:
        stack.stop("device")
    return stack


@pytest.fixture
def beating(device: Stack) -> Stack:
    """With everything up that sweeps: beat and the default worker."""
    for name in ("default", "beat"):
        if name not in device.processes:
            device.start(name)
    return device
