"""The drift check of a calibration on its device: the engine, its lock, and experiment.drift's verdict."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibration.architecture import Architecture
from calibration.engine.client import EngineClient, rank_device
from calibration.experiment import Envelope, Region, environment_record
from calibration.experiment.clocks import device_settings
from calibration.experiment.drift import DriftReport, change_reason, choose_sentinels, measure_drift
from calibration.pipeline import device_kind, held
from calibration.steptime import StepSample

EIGHT_BITS = "float8"
#: Fields of the environment whose names say too little.
CALLED = {
    "measuring_code_sha256": "our measuring code", "config_sha256": "the model's configuration",
    "dtype": "number format", "kv_tokens": "the KV pool [tokens]", "cuda": "CUDA", "device_name": "the GPU",
    "max_clock_mhz": "the highest clock [MHz]", "application_clock_mhz": "the application clock [MHz]",
    "power_limit_w": "the power limit [W]", "mixed_mode": "how prefill and decode share a step",
}  # fmt: skip
DIGEST_SHOWN = 12  # characters
_DIGEST = re.compile(r"[0-9a-f]{40,}")


def drift_check(
    architecture: Architecture,
    envelope: Envelope,
    samples: Sequence[StepSample],
    environment: Mapping[str, Any],
    *,
    device: str,
    kv_tokens: int,
    seed: int = 0,
    tensor_parallel: int = 1,
    on_log: Callable[[str], None] = lambda line: None,
    on_stage: Callable[[str], None] = lambda words: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> DriftReport:
    """Times a few steps of the calibration again, with the engine and pool that it had. Holds the device's lock,
    or those of all `tensor_parallel` ranks' devices.

    `samples` and `environment`: the calibration's. `on_stage`: told what it is at, in words. Raises ValueError for
    samples that cannot be compared, Stopped, EngineError.
    """
    choose_sentinels(samples)  # what cannot be compared starts no engine
    with contextlib.ExitStack() as stack:
        names = dict.fromkeys(rank_device(device, rank) for rank in range(tensor_parallel))
        on_stage(f"Waiting for {device}, which measures one thing at a time")
        locks = [stack.enter_context(held(name, should_stop)) for name in names]
        on_stage("Starting the engine")
        client = EngineClient(
            architecture, device=device, dtype=asked_dtype(environment), kv_tokens=kv_tokens,
            max_positions=envelope.max_context_tokens + 1, seed=seed, tensor_parallel=tensor_parallel,
            lock_descriptors=locks,
            mixed_mode=str(environment.get("mixed_mode") or "unified"),
        )  # fmt: skip
        with client as runner:
            on_stage("Timing its steps again")
            now = (
                environment_record(architecture, envelope, [], seed)
                | runner.environment()
                | device_settings(device)
            )
            report = measure_drift(
                runner, Region(envelope, kv_tokens), samples, environment, now, device_kind(device), seed=seed,
                on_log=on_log, should_stop=should_stop,
            )  # fmt: skip
        return in_words(report)


def in_words(report: DriftReport) -> DriftReport:
    """The same, with what changed of the environment told as people say it: digests by their beginning."""
    words = {
        change_reason(change): (
            f"{CALLED.get(change.field, change.field.replace('_', ' '))} changed: {_short(change.then)} then, "
            f"{_short(change.now)} now"
        )
        for change in report.changes
    }
    return replace(report, reasons=tuple(words.get(reason, reason) for reason in report.reasons))


def _short(text: str) -> str:
    return f"{text[:DIGEST_SHOWN]}…" if _DIGEST.fullmatch(text) else text or "nothing"


def asked_dtype(environment: Mapping[str, Any]) -> str:
    """What an engine is started with to be the one that was recorded: 8-bit weights compute in bfloat16."""
    if str(environment.get("weights", "")).startswith(EIGHT_BITS):
        return EIGHT_BITS
    return str(environment.get("dtype") or "auto")
