"""`python -m calibration.measure --model CONFIG_OR_PRESET --device cpu --out FILE.json`: the offline run.

Measures and fits as the web application does, without it: needs torch, numpy and scipy only. The file holds
every sample, the environment and the model, and is imported in browser, API or command line. While it runs,
FILE.partial has what was measured so far: the same command again goes on from there.
Exit status: 0 published, 2 bad input, 3 refused by the gate (nothing is published; the file then holds the
samples and the reason).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from calibration.architecture import Architecture, UnsupportedArchitecture, load_architecture
from calibration.disturbance import disturbances
from calibration.document import CalibrationDocument, write_document
from calibration.engine.client import EngineError, rank_device
from calibration.engine.cpu import cpu_model
from calibration.engine.memory import cpu_memory_bytes
from calibration.engine.sharding import CannotShard, check_shards
from calibration.experiment import DEMO_ENVELOPE, BadEnvelope, DoesNotFit, Envelope, check_fits
from calibration.experiment.environment import measuring_code_sha256
from calibration.facts import NOTHING_KNOWN
from calibration.partial import PartialError, PartialRun, kept_kv_tokens, partial_path, write_whole
from calibration.pipeline import CalibrationResult, Stopped, calibrate
from calibration.telling import Teller

PUBLISHED, BAD_INPUT, REFUSED, STOPPED = 0, 2, 3, 130


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    partial: PartialRun | None = None
    teller = Teller(sys.stderr)
    try:
        architecture = load_architecture(options.model)
        envelope = Envelope(options.max_batch, options.max_context_tokens, options.max_step_tokens)
        if not options.fresh and options.kv_tokens is None:
            # The default follows free memory; an interrupted run's pool decides which points there are.
            options.kv_tokens = kept_kv_tokens(partial_path(Path(options.out)))
        kv_tokens = _kv_tokens(options, architecture, envelope)
        partial = _partial(options, architecture, envelope, kv_tokens)
        result = calibrate(
            architecture,
            envelope,
            device=options.device,
            dtype=options.dtype,
            mixed_mode=options.mixed_mode,
            kv_tokens=kv_tokens,
            seed=options.seed,
            surroundings=not options.steps_only,
            tensor_parallel=options.tensor_parallel,
            earlier=dict(partial.samples),
            on_sample=partial.keep,
            on_progress=teller.progress,
            on_log=teller.log,
        )
    except (UnsupportedArchitecture, BadEnvelope, DoesNotFit, EngineError, PartialError, OSError) as problem:
        _say(f"\n{problem}\n")
        return BAD_INPUT
    except (KeyboardInterrupt, Stopped):
        kept = partial and len(partial.samples)
        if partial:
            partial.write()
        _say(
            f"\nstopped; {kept} steps are kept: the same command goes on from there\n"
            if kept
            else "\nstopped\n"
        )
        return STOPPED
    teller.end()
    _write(options, architecture, envelope, kv_tokens, result)
    partial.done()
    heldout = result.report and {"median": result.report.median, "p90": result.report.p90}
    summary: dict[str, Any] = {"published": result.published, "heldout": heldout, "reason": result.reason}
    summary |= {"remarks": list(disturbances(result.environment, options.device))}
    summary |= {"out": options.out, "cpu_s": result.environment["cpu_s"]}
    sys.stdout.write(json.dumps(summary) + "\n")
    return PUBLISHED if result.published else REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m calibration.measure", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", required=True, help="a preset, or the path of a config.json")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, ...")
    parser.add_argument(
        "--dtype", default="auto", help="auto, bfloat16, float16, float32 or float8 (8-bit weights)"
    )
    parser.add_argument(
        "--mixed-mode", default="unified", choices=["unified", "split"],
        help="whether a GPU's attention serves decodes and chunks in one kernel or apart",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        help="GPUs that one model is split among, from --device on; on a CPU processes, for testing",
    )
    parser.add_argument("--max-batch", type=int, default=DEMO_ENVELOPE.max_batch, help="sequences at once")
    parser.add_argument(
        "--max-context-tokens", type=int, default=DEMO_ENVELOPE.max_context_tokens, help="tokens"
    )
    parser.add_argument("--max-step-tokens", type=int, default=DEMO_ENVELOPE.max_step_tokens, help="tokens")
    parser.add_argument(
        "--kv-tokens", type=int, help="size of the KV pool; default: a quarter of free memory"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps-only", action="store_true", help="leave out KV pools by token budget and KV transfers"
    )
    parser.add_argument("--out", required=True, help="the file that the calibration is written to")
    parser.add_argument("--fresh", action="store_true", help="do not go on from an interrupted run")
    return parser


def _kv_tokens(options: argparse.Namespace, architecture: Architecture, envelope: Envelope) -> int:
    ranks = options.tensor_parallel
    try:
        check_shards(architecture, ranks)
    except CannotShard as error:
        raise BadEnvelope("tensor_parallel", str(error)) from None
    cpu = options.device.startswith("cpu")
    names = dict.fromkeys(rank_device(options.device, rank) for rank in range(ranks))
    return check_fits(
        architecture,
        envelope,
        device=options.device,
        free_bytes=min(_free_bytes(name) for name in names) // (ranks if cpu else 1),
        kv_tokens=options.kv_tokens,
        dtype=options.dtype,
        tensor_parallel=ranks,
    )


def _free_bytes(device: str) -> int:
    """Free memory of the device; another process asks torch about a GPU, so that this one stays small."""
    if device.startswith("cpu"):
        return cpu_memory_bytes()[1]
    command = [sys.executable, "-m", "calibration.engine.devices"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    if answer.returncode:
        raise EngineError(f"torch cannot be asked about {device}: {answer.stderr[-1000:]}")
    known = {row["name"]: int(row["free_bytes"]) for row in json.loads(answer.stdout.splitlines()[-1])}
    if device not in known:
        raise EngineError(f"there is no device {device!r} here (there is {', '.join(known)})")
    return known[device]


def _write(
    options: argparse.Namespace,
    architecture: Architecture,
    envelope: Envelope,
    kv_tokens: int,
    result: CalibrationResult,
) -> None:
    document = CalibrationDocument(
        architecture=architecture,
        device=options.device,
        envelope=envelope,
        kv_tokens=kv_tokens,
        seed=options.seed,
        environment=result.environment,
        samples=result.samples,
        model=result.model.to_dict() if result.model else None,
        provenance={"engine": "ridgeline", "reason": result.reason},
        facts=result.facts or NOTHING_KNOWN,
    )
    write_whole(Path(options.out), write_document(document))


def _partial(
    options: argparse.Namespace, architecture: Architecture, envelope: Envelope, kv_tokens: int
) -> PartialRun:
    """What an interrupted run of the same kind has left beside `--out`. Raises PartialError, OSError."""
    path = partial_path(Path(options.out))
    if options.fresh:
        path.unlink(missing_ok=True)
    request = {
        "architecture": architecture.to_dict(), "envelope": envelope.to_dict(), "device": options.device,
        "dtype": options.dtype, "mixed_mode": options.mixed_mode, "tensor_parallel": options.tensor_parallel,
        "kv_tokens": kv_tokens,
        "seed": options.seed, "processor": cpu_model(),
        "torch": importlib.metadata.version("torch"), "measuring_code_sha256": measuring_code_sha256(),
    }  # fmt: skip
    run = PartialRun.open(path, request)
    if run.samples:
        _say(f"going on from {path}: {len(run.samples)} steps were measured before\n")
    return run


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
