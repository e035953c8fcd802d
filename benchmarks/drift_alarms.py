"""How often does a drift check of this machine's CPU cry wolf, and does it notice a device that really slowed down?

    python -m benchmarks.drift_alarms [--quiet 20] [--slowed 3] [--keep FILE.json]

Times a quarter of a calibration's points of the demo model in a small region, then checks them again and again:
`--quiet` times as the device is, and `--slowed` times each with every step stretched by 5 % and by 12 % inside the
engine (calibration.engine.process.STRETCH). On the CPU's thresholds the quiet ones and those of 5 % should say nothing,
those of 12 % should call for measuring anew. Every check starts an engine of its own, as the job does. `--keep` writes
the points to a file, or takes them from there. Prints each check's mean with its interval, the alarms of each kind, and
the CPU seconds of a check.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.architecture import PRESETS
from calibration.document import CalibrationDocument, read_document, write_document
from calibration.drift import drift_check
from calibration.engine.client import EngineClient
from calibration.engine.process import STRETCH
from calibration.experiment import (
    RULES,
    Envelope,
    Region,
    environment_record,
    points,
    run_experiment,
    sentinels,
    warm_up,
)
from calibration.experiment.clocks import device_settings
from calibration.facts import NOTHING_KNOWN
from calibration.pipeline import held
from calibration.steptime import StepSample

ENVELOPE = Envelope(max_batch=8, max_context_tokens=256, max_step_tokens=128)
KV_TOKENS = 4096


Base = tuple[Sequence[StepSample], Mapping[str, Any]]


def _base(kept: Path | None) -> Base:
    """The calibration's samples and environment: of the file, or measured now."""
    if kept is not None and kept.exists():
        document = read_document(kept)
        return document.samples, document.environment
    samples, environment = _timed()
    if kept is not None:
        document = CalibrationDocument(
            architecture=PRESETS["demo"], device="cpu", envelope=ENVELOPE, kv_tokens=KV_TOKENS, seed=0,
            environment=dict(environment), samples=list(samples), model=None, provenance={}, facts=NOTHING_KNOWN,
        )  # fmt: skip
        kept.write_bytes(write_document(document))
    return samples, environment


def _timed() -> Base:
    region = Region(ENVELOPE, KV_TOKENS)
    with held("cpu", lambda: False) as descriptor:
        client = EngineClient(
            PRESETS["demo"], device="cpu", kv_tokens=KV_TOKENS, max_positions=ENVELOPE.max_context_tokens + 1,
            lock_descriptor=descriptor,
        )  # fmt: skip
        with client as runner:
            environment = environment_record(PRESETS["demo"], ENVELOPE, [], 0) | runner.environment()
            result = run_experiment(
                runner, points(region, "cpu", 0)[::4], sentinels(region), warm_up(region), rules=RULES["cpu"], seed=0,
                on_sample=lambda ordinal, sample: None, on_progress=lambda done, total, message, eta_s: None,
                on_log=lambda line: None, should_stop=lambda: False,
            )  # fmt: skip
    contended = sum(sample.contended_share for sample in result.samples) / len(result.samples)
    print(f"timed {len(result.samples)} steps, contended {contended:.0%}")
    return result.samples, environment | device_settings("cpu")


def checked(base: Base, factor: float, seed: int) -> dict[str, object]:
    os.environ[STRETCH] = str(factor)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = drift_check(
        PRESETS["demo"],
        ENVELOPE,
        *base,
        device="cpu",
        kv_tokens=KV_TOKENS,
        seed=seed,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    mean = report.mean
    said = "; ".join(report.reasons) or "quiet"
    interval = f"{mean.log_ratio:+.4f} [{mean.low:+.4f}, {mean.high:+.4f}]"
    print(
        f"x {factor:4.2f} seed {seed:2d}: {interval} contended {report.contended_share:.0%}, {cpu_s:.1f} s, {said}"
    )
    return {"factor": factor, "drifted": report.drifted, "mean": mean.log_ratio, "cpu_s": cpu_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quiet", type=int, default=20)
    parser.add_argument("--slowed", type=int, default=3)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    os.environ.pop(STRETCH, None)
    base = _base(options.keep)
    runs = [checked(base, 1.0, seed) for seed in range(options.quiet)]
    runs += [checked(base, factor, seed) for factor in (1.05, 1.12) for seed in range(options.slowed)]
    told = {}
    for factor in (1.0, 1.05, 1.12):
        own = [run for run in runs if run["factor"] == factor]
        told[f"{factor:g}"] = {
            "checks": len(own), "alarms": sum(bool(run["drifted"]) for run in own),
            "mean_log_ratio_sd": statistics.pstdev(float(str(run["mean"])) for run in own) if own else None,
        }  # fmt: skip
    cpu_s = statistics.median(float(str(run["cpu_s"])) for run in runs)
    print(json.dumps({"by_factor": told, "cpu_s_of_a_check": round(cpu_s, 1)}))


if __name__ == "__main__":
    main()
