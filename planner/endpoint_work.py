"""The work behind verifying a running server: predict, send the window's requests on schedule, compare.

Everything goes through the guarded client. The API key, if one was given, is read once here and is in no message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration import outgoing
from calibration.jobs import JobRefused, JobRun
from calibration.patience import patiently
from calibration.pipeline import device_kind
from calibration.sources.outbound import OutboundError
from planner import endpoint_keys
from planner.models import ServerAnswers, Verification
from planner.pool_models import PoolModels, chosen_calibrations
from planner.search.requests import Requests
from planner.simulation.outcome import Outcome
from planner.traffic import PrefixHashes, Traffic
from planner.verification.answer_rows import packed
from planner.verification.curves import gap_quantiles, quantiles
from planner.verification.endpoint_report import EndpointReport, compare_endpoint
from planner.verification.load import Endpoint
from planner.verification.load import run as send
from planner.verification.measured import Measured, measure
from planner.verification.partial import UNENDED, partial_endpoint
from planner.verification.stream import Answer
from planner.verification_results import broken_off, store
from planner.verification_subject import Subject, paced, predict, subject_of
from planner.verifications import why_not_endpoint
from planner.work import await_simulator

REFITS = 20
MOST_S = 4 * 3600.0
SILENCE_S = 120.0


def verify_endpoint(row: Verification, run: JobRun) -> None:
    """Sends the window to the row's server and writes the report."""
    key = endpoint_keys.take(row.pk)
    if row.options.get("keyed") and key is None:
        raise JobRefused("Its API key is gone: it is kept for one start only. Start it anew from the plan.")
    if reason := why_not_endpoint(row.plan):
        raise JobRefused(reason)
    await_simulator(run, row.plan)
    models, devices = PoolModels.of(row.plan), chosen_calibrations(row.plan)
    run.progress(0, 1, "Predicting")
    try:
        subject, pace = paced(
            subject_of(row.plan, row.requests, row.options["replicas"]), row.options.get("load"), models.steps
        )  # fmt: skip
    except ValueError as problem:
        raise JobRefused(f"{problem}") from problem
    predicted = predict(subject, models.steps)
    refits = [predict(subject, refit) for refit in models.refitted(REFITS, row.seed)]
    _refuse_the_endless(subject.requests)
    endpoint = Endpoint(
        row.options["base_url"], row.options["model"], row.options["vocabulary"], token=key or "",
        silence_s=row.options.get("silence_s", SILENCE_S),
    )  # fmt: skip
    run.write_log(
        f"Sending {subject.requests.count} requests at {pace['rate_per_s']:.3g}/s to {endpoint.base_url}"
    )
    progress = _Progress(run)
    try:
        answers = send(
            endpoint, traffic_to_send(subject.requests), outgoing.guard(), seed=row.seed, on_progress=progress,
            should_stop=run.should_stop,
        )  # fmt: skip
    except OutboundError as problem:
        raise JobRefused(f"{problem}.") from problem
    _keep(row, answers)
    if run.should_stop() and any(answer.error in UNENDED for answer in answers):
        more = {"first": subject.first, "of": subject.of, "replicas": subject.replicas, **pace}
        raise broken_off(row, partial_endpoint(answers, predicted, _places(subject), row.seed) | more)
    measured = measure(answers)
    kinds = {device_kind(each.device) for each in devices}
    kind = "gpu" if "gpu" in kinds else "cpu"  # of both the tighter bars
    report = compare_endpoint(
        predicted, refits, measured, kind, extra_s=_extra_s(subject.requests),
        seed=row.seed,
    )  # fmt: skip
    pace_and_device = {**pace, "device": " and ".join(dict.fromkeys(each.device_label for each in devices))}
    _write(row, report, subject, predicted, measured, pace_and_device)
    run.write_log(report.sentence)


def _keep(row: Verification, answers: Sequence[Answer]) -> None:
    """What each request saw, of the last start of this row."""
    rows = packed(answers)
    patiently(lambda: ServerAnswers.objects.update_or_create(verification=row, defaults={"rows": rows}))


def _places(subject: Subject) -> NDArray[np.int64]:
    """Where each request stands in the prediction: replicas alike are predicted one after the other."""
    everything = np.arange(subject.requests.count)
    if subject.split is not None:
        return everything
    return np.argsort(np.concatenate([everything[i :: subject.replicas] for i in range(subject.replicas)]))


@dataclass(slots=True)
class _Progress:
    run: JobRun
    began: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int) -> None:
        left = (time.monotonic() - self.began) / done * (total - done) if done else None
        self.run.progress(done, total, "Sending, and waiting for answers", left)


def _refuse_the_endless(requests: Requests) -> None:
    span_s = float(requests.arrival_s[-1] - requests.arrival_s[0])
    if span_s > MOST_S:
        raise JobRefused(
            f"Sending these requests would take {span_s / 3600:.1f} hours: take fewer, or a higher load."
        )


def _extra_s(requests: Requests) -> float:
    return float(requests.extra_s.mean()) if requests.extra_s is not None else 0.0


def traffic_to_send(requests: Requests) -> Traffic:
    """The same requests for the load generator: prompts begin alike where the plan counts on it."""
    prefix = requests.prefix
    hashes = (
        PrefixHashes(prefix.ids.astype(np.uint64), prefix.offsets, prefix.block_tokens) if prefix else None
    )
    return Traffic(
        arrival_s=requests.arrival_s - requests.arrival_s[0], prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens, source="verification", format="window", prefix_hashes=hashes,
    )  # fmt: skip


def _write(
    row: Verification,
    report: EndpointReport,
    subject: Subject,
    predicted: Outcome,
    measured: Measured,
    more: dict[str, Any],
) -> None:
    result = endpoint_result_of(report, predicted, measured) | more
    result |= {"first": subject.first, "of": subject.of, "replicas": subject.replicas}
    store(row, result, holds=report.holds, sentence=report.sentence)


def endpoint_result_of(report: EndpointReport, predicted: Outcome, measured: Measured) -> dict[str, Any]:
    """What is stored: the report and both distributions as quantiles."""
    itl = measured.values_s.get("itl", np.empty(0))
    return report.to_dict() | {
        "busy_bias": None,
        "curves": {
            "ttft": {
                "predicted_s": quantiles(predicted.ttft_s()),
                "measured_s": quantiles(measured.values_s["ttft"]),
            },
            "itl": {"predicted_s": gap_quantiles(predicted), "measured_s": quantiles(itl)},
        },
    }
