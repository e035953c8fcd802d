"""One installation for the job tests, and the models they measure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dealing import piece_of
from tests.jobs.stack import Stack, running
from tests.ops.services import wait_for

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


SHARED = pytest.StashKey[Stack]()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The shared installation ends with the last test that uses it: its workers would sweep beside all the others."""
    shared = item.config.stash.get(SHARED, None)
    piece = piece_of(item.nodeid)
    if shared and piece == "tests/jobs" and (nextitem is None or piece_of(nextitem.nodeid) != piece):
        shared.end()


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Sweeps more often than usual: what they find is tested, not how long they pause."""
    with running(tmp_path_factory.mktemp("jobs"), SWEEP_EVERY_S="3") as installation:
        request.config.stash[SHARED] = installation
        yield installation


@pytest.fixture
def device(stack: Stack) -> Stack:
    """With the device worker up."""
    stack.start_missing("device")
    return stack


@pytest.fixture
def no_device(stack: Stack) -> Stack:
    if "device" in stack.processes:
        stack.stop("device")
    return stack


@pytest.fixture
def beating(device: Stack) -> Stack:
    """With everything up that sweeps: beat and the default worker."""
    device.start_missing("default", "beat")
    return device


@dataclass(frozen=True)
class Killed:
    """A job whose process was killed at work: its row, the samples it had stored then, and when [s since 1970]."""

    pk: str
    samples: int
    at_s: float


def caught_at_work(stack: Stack, request: dict[str, Any]) -> tuple[str, int]:
    """A job that is at work and has stored three samples or more, and their number. One that ended before anybody
    looked is followed by another."""
    for _ in range(5):
        pk = stack.call("start", **request)
        row = stack.wait_for_status(pk, "running", "done")
        while row["status"] == "running" and len(row["ordinals"]) < 3:
            row = stack.call("row", pk=pk)
        if row["status"] == "running":
            return pk, len(row["ordinals"])
        assert row["status"] == "done", row
    pytest.fail(f"never seen at work: {row}")


@pytest.fixture(scope="session")
def killed(stack: Stack) -> tuple[Killed, Killed]:
    """Two jobs killed with kill -9: one by its pool child's death, which the worker survives, and one by its
    worker's, whose child must not work on. The other tests run while nobody answers for them."""
    stack.start_missing("default", "beat", "device")
    pk, samples = caught_at_work(stack, LONGER)
    [child] = stack.children("device")
    os.kill(child, signal.SIGKILL)
    first = Killed(pk, samples, time.time())
    pk, samples = caught_at_work(stack, REQUEST)  # the short one: it is run again
    [child] = stack.children("device")
    worker = stack.processes.pop("device")
    worker.kill()
    worker.wait()
    second = Killed(pk, samples, time.time())
    wait_for(lambda: not Path(f"/proc/{child}").exists(), "the killed worker's child to end")
    return first, second
