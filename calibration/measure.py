"""`python -m calibration.measure --model CONFIG_OR_PRESET --device cpu --out FILE.json`: the offline run.

Measures and fits as the web application does, without it: needs torch, numpy and scipy only. The file holds
every sample, the environment and the model, and is imported in browser, API or command line.
Exit status: 0 published, 2 bad input, 3 refused by the gate (nothing is published; the file then holds the
samples and the reason).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from calibration.architecture import Architecture, UnsupportedArchitecture, load_architecture
from calibration.document import CalibrationDocument, write_document
from calibration.engine.client import EngineError
from calibration.engine.memory import cpu_memory_bytes
from calibration.experiment import DEMO_ENVELOPE, BadEnvelope, DoesNotFit, Envelope, check_fits
from calibration.pipeline import CalibrationResult, Stopped, calibrate

PUBLISHED, BAD_INPUT, REFUSED, STOPPED = 0, 2, 3, 130


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        architecture = load_architecture(options.model)
        envelope = Envelope(options.max_batch, options.max_context_tokens, options.max_step_tokens)
        kv_tokens = _kv_tokens(options, architecture, envelope)
        if options.out:
            Path(options.out).touch()  # a run of a minute is not lost to a folder that is not there
        result = calibrate(
            architecture,
            envelope,
            device=options.device,
            dtype=options.dtype,
            kv_tokens=kv_tokens,
            seed=options.seed,
            on_progress=_show,
            on_log=lambda line: _say(f"\r\033[K{line}\n"),
        )
    except (UnsupportedArchitecture, BadEnvelope, DoesNotFit, EngineError, OSError) as problem:
        _say(f"\n{problem}\n")
        return BAD_INPUT
    except (KeyboardInterrupt, Stopped):
        _say("\nstopped\n")
        return STOPPED
    if options.out:
        _write(options, architecture, envelope, kv_tokens, result)
    heldout = result.report and {"median": result.report.median, "p90": result.report.p90}
    summary = {"published": result.published, "heldout": heldout, "reason": result.reason}
    summary |= {"out": options.out, "cpu_s": result.environment["cpu_s"]}
    sys.stdout.write(json.dumps(summary) + "\n")
    return PUBLISHED if result.published else REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m calibration.measure", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", required=True, help="a preset, or the path of a config.json")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, ...")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument("--max-batch", type=int, default=DEMO_ENVELOPE.max_batch, help="sequences at once")
    parser.add_argument(
        "--max-context-tokens", type=int, default=DEMO_ENVELOPE.max_context_tokens, help="tokens"
    )
    parser.add_argument("--max-step-tokens", type=int, default=DEMO_ENVELOPE.max_step_tokens, help="tokens")
    parser.add_argument(
        "--kv-tokens", type=int, help="size of the KV pool; default: a quarter of free memory"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="where the calibration is written")
    return parser


def _kv_tokens(options: argparse.Namespace, architecture: Architecture, envelope: Envelope) -> int:
    return check_fits(
        architecture,
        envelope,
        device=options.device,
        free_bytes=_free_bytes(options.device),
        kv_tokens=options.kv_tokens,
        dtype=options.dtype,
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
    )
    Path(options.out).write_bytes(write_document(document))


def _show(done: int, total: int, message: str, eta_s: float | None) -> None:
    left = "" if eta_s is None else f", about {eta_s:.0f} s left"
    _say(f"\r\033[K{done}/{total} {message}{left}")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
