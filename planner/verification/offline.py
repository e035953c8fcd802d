"""`python -m planner.verification.offline CALIBRATION.json`: a replay without the application.

Serves a made-up traffic on the device that the file's calibration is of, at a share of what one replica holds, and
holds it against the simulation: the same loop, report and bars as the job's. Needs torch (in the engine's process),
numpy, scipy and numba; no Django, no database.
Exit status: 0 within the bars, 1 outside them, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from calibration.document import CalibrationDocument, DocumentError, read_document
from calibration.drift import asked_dtype
from calibration.engine.client import EngineClient, EngineError
from calibration.engine.device_lock import device_lock
from calibration.experiment import Region, run_step, warm_up
from calibration.pipeline import device_kind
from calibration.steptime import StepTimeModel, step_seconds
from planner.search.confidence import pick_refits
from planner.search.requests import Requests
from planner.simulation import reference
from planner.simulation.knobs import VllmKnobs
from planner.traffic import PRESETS, synthesise
from planner.verification.loop import Replayed, replay
from planner.verification.pool_steps import PoolSteps
from planner.verification.rate import at_rate, held_per_s
from planner.verification.report import Report, compare, told_speed
from planner.verification.speed import Speed, SpeedWatch

HOLDS, MISSED, BAD_INPUT = 0, 1, 2
REFITS = 8
LOCK_WAIT_S = 600.0


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        document = read_document(options.calibration)
        if document.model is None or document.envelope is None:
            raise ValueError("the calibration is not published: there is nothing to predict with")
        report, facts = _run(options, document, StepTimeModel.from_dict(document.model))
    except OSError as problem:
        _say(f"{problem.filename or options.calibration}: {problem.strerror or problem}\n")
        return BAD_INPUT
    except (DocumentError, EngineError, ValueError) as problem:
        _say(f"{problem}\n")
        return BAD_INPUT
    found = facts | report.to_dict()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    _tell(report)
    sys.stdout.write(json.dumps({key: found[key] for key in ("holds", "sentence", "busy_bias")}) + "\n")
    return HOLDS if report.holds else MISSED


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m planner.verification.offline", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("calibration", type=Path, help="a calibration's file (calibration.measure writes it)")
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS), help="whose lengths are served")
    parser.add_argument(
        "--divide-lengths",
        type=int,
        default=1,
        help="serve requests of that fraction of the lengths (for tiny models)",
    )
    parser.add_argument("--load", type=float, default=0.8, help="share of what one replica holds (0.8)")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--replays", type=int, default=3)
    parser.add_argument("--at-most-s", type=float, default=3600.0, help="begin no replay that ends later [s]")
    parser.add_argument("--budget-tokens", type=int, help="max_num_batched_tokens; default: the envelope's")
    parser.add_argument("--chunk-tokens", type=int, default=0, help="most of one prompt in a step; 0: no cap")
    parser.add_argument("--max-num-seqs", type=int, help="default: the envelope's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the report is written, as JSON")
    return parser


def _run(
    options: argparse.Namespace, document: CalibrationDocument, model: StepTimeModel
) -> tuple[Report, dict[str, Any]]:
    knobs = knobs_of(options, document)
    arrays = model.arrays()
    unpaced = requests_of(options, document)
    held = held_per_s(unpaced, lambda many: simulated(many, knobs, arrays))
    requests = at_rate(unpaced, options.load * held)
    predicted = simulated(requests, knobs, arrays)
    refits = [simulated(requests, knobs, model.arrays(i)) for i in pick_refits(model, REFITS, options.seed)]
    _say(
        f"{requests.count} requests at {options.load * held:.3g}/s, {options.load:.0%} of {held:.3g}/s; "
        f"predicted to keep the device busy for {predicted.busy_s:.0f} s\n"
    )
    replays, speed = _serve(options, document, requests, knobs, model, predicted.busy_s)
    kind, steps = device_kind(document.device), PoolSteps.alike(arrays)
    report = compare(
        predicted, refits, replays, steps, kind, seed=options.seed, speed=speed,
        at_speed=simulated(requests, knobs, steps.scaled(speed.factor).decode) if speed else None,
    )  # fmt: skip
    facts = {
        "device": document.device, "model": document.architecture.name, "clock": "virtual" if kind == "cpu" else "real",
        "held_per_s": held, "load": options.load, "preset": options.preset, "seed": options.seed,
    }  # fmt: skip
    return report, facts


def knobs_of(options: argparse.Namespace, document: CalibrationDocument) -> VllmKnobs:
    assert document.envelope is not None  # noqa: S101 - main looked
    return VllmKnobs(
        max_num_batched_tokens=options.budget_tokens or document.envelope.max_step_tokens,
        max_num_seqs=options.max_num_seqs or document.envelope.max_batch,
        num_blocks=document.kv_tokens // 16,
        long_prefill_token_threshold=options.chunk_tokens,
    )


def requests_of(options: argparse.Namespace, document: CalibrationDocument) -> Requests:
    traffic = synthesise(options.preset, requests=options.requests, seed=options.seed)
    shorter = [
        np.maximum(1, lengths // options.divide_lengths)
        for lengths in (traffic.prompt_tokens, traffic.output_tokens)
    ]
    requests = Requests(traffic.arrival_s, *shorter)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    assert document.envelope is not None  # noqa: S101 - main looked
    if longest > document.envelope.max_context_tokens:
        raise ValueError(
            f"requests of {longest:,} tokens do not fit the {document.envelope.max_context_tokens:,} that were measured"
        )
    return requests


def simulated(requests: Requests, knobs: VllmKnobs, arrays: Any) -> Any:
    return reference.simulate(
        requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None, knobs, arrays,
        step_seconds=step_seconds,
    )  # fmt: skip


def _serve(
    options: argparse.Namespace,
    document: CalibrationDocument,
    requests: Requests,
    knobs: VllmKnobs,
    model: StepTimeModel,
    busy_s: float,
) -> tuple[list[Replayed], Speed | None]:
    assert document.envelope is not None  # noqa: S101 - main looked
    began = time.monotonic()
    found: list[Replayed] = []
    _say(f"waiting for {document.device}, which measures one thing at a time\n")
    with (
        device_lock(document.device, wait_s=LOCK_WAIT_S) as descriptor,
        EngineClient(
            document.architecture, device=document.device, dtype=asked_dtype(document.environment),
            mixed_mode=str(document.environment.get("mixed_mode") or "unified"),
            kv_tokens=document.kv_tokens, max_positions=document.envelope.max_context_tokens + 1, seed=options.seed,
            lock_descriptor=descriptor,
        ) as engine,
    ):  # fmt: skip
        for shape in warm_up(Region(document.envelope, document.kv_tokens)):
            run_step(engine, shape, options.seed)
        watch = SpeedWatch.of(engine, document.samples, options.seed)
        for number in range(options.replays):
            if found and time.monotonic() - began + busy_s > options.at_most_s:
                _say(f"no time for replay {number + 1}\n")
                break
            _say(f"replay {number + 1} of {options.replays}, and how fast the device is meanwhile\n")
            watch.look()
            found.append(
                replay(
                    engine, requests, knobs, model.arrays(), seed=options.seed + 1_000_003 * number,
                    with_host_gap=device_kind(document.device) == "gpu",
                    on_step=lambda tokens, seconds: watch.stepped(),
                )
            )  # fmt: skip
        watch.look()
    return found, watch.speed()


def _tell(report: Report) -> None:
    for line in report.lines:
        bar = (
            "shown only" if line.bar is None else f"bar {line.bar:.0%}, {'holds' if line.holds else 'MISSED'}"
        )
        now = (
            "" if line.at_speed_s is None else f", {line.at_speed_s * 1e3:.2f} ms at the device's speed then"
        )
        apart = "" if line.spread is None else f", replays {line.spread:.1%} apart"
        _say(
            f"{line.label:9} predicted {line.predicted_s * 1e3:9.2f} ms, measured {line.measured_s * 1e3:9.2f} ms: "
            f"{line.error:+6.1%} ({bar}{apart}{now})\n"
        )
    for row in report.residuals:
        _say(
            f"{row.kind:8} {row.sizes:20} {row.steps:6} steps {row.busy_share:6.1%} of the time {row.error:+6.1%}\n"
        )
    if report.speed:
        _say(f"{told_speed(report.speed)}\n")
    _say(f"busy time {report.busy_bias:+.1%} (bar {report.busy_bar:.0%})\n{report.sentence}\n")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
