"""Small problems for the search: a step-time model with known refits, traffic, and an architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from calibration.architecture import PRESETS, Architecture
from calibration.steptime import StepTimeArrays, linear_model
from planner.traffic import Traffic


@dataclass(frozen=True)
class KnownSpread:
    scale: float = 0.04

    @property
    def law_error(self) -> float:
        return self.scale


@dataclass(frozen=True)
class KnownModel:
    """A step-time model whose refit k is slower by `spread * k`."""

    base: StepTimeArrays
    spread: float = 0.01
    refits: range = range(8)
    decode_spread: KnownSpread = KnownSpread(0.02)
    chunk_spread: KnownSpread = KnownSpread(0.04)

    def arrays(self, refit: int | None = None) -> StepTimeArrays:
        factor = 1.0 + self.spread * (refit or 0)
        return self.base._replace(
            theta=self.base.theta * factor,
            decode_tokens_s=self.base.decode_tokens_s * factor,
            chunk_tokens_s=self.base.chunk_tokens_s * factor,
        )

    def to_dict(self) -> dict[str, Any]:
        return {"theta": [min(t, 1e300) for t in self.base.theta.tolist()], "spread": self.spread}


@pytest.fixture(scope="session")
def architecture() -> Architecture:
    return replace(PRESETS["llama-3.1-8b"], name="Llama-3.1-8B")


@pytest.fixture(scope="session")
def model() -> KnownModel:
    """10 ms a step, 0.1 ms a token: a 1,000-token prompt takes 0.11 s, a decode 10 ms."""
    return KnownModel(linear_model(0.010, token_s=1e-4))


@pytest.fixture(scope="session")
def measured_model() -> Callable[..., KnownModel]:
    """A model like `model` that was measured up to `tokens` per step, `batch` decodes and `context` tokens."""

    def make(tokens: float = np.inf, batch: float = np.inf, context: float = np.inf) -> KnownModel:
        base = linear_model(0.010, token_s=1e-4)
        high = np.array([tokens, batch, np.inf, np.inf, context, np.inf, np.inf])
        return KnownModel(base._replace(high=high))

    return make


@pytest.fixture(scope="session")
def traffic() -> Callable[..., Traffic]:
    """Poisson arrivals, prompts around `prompt` and outputs around `output` tokens."""

    def make(
        requests: int = 400, rate_per_s: float = 4.0, prompt: int = 400, output: int = 20, seed: int = 0
    ) -> Traffic:
        random = np.random.default_rng(seed)
        arrival_s = np.concatenate(([0.0], np.cumsum(random.exponential(1.0 / rate_per_s, requests - 1))))
        return Traffic(
            arrival_s=arrival_s,
            prompt_tokens=random.integers(1, 2 * prompt, requests),
            output_tokens=random.integers(1, 2 * output, requests),
            source="test",
            format="synthetic",
            recipe={"seed": seed},
        )

    return make
