"""The work behind a replay: predict, serve on the device, compare."""

from __future__ import annotations

from contextlib import suppress

from calibration.engine.client import EngineClient, EngineError
from calibration.jobs import JobRefused, JobRun
from calibration.pipeline import device_kind
from calibration.services import samples_of
from planner import two_pools_work
from planner.models import Verification
from planner.pool_models import PoolModels
from planner.simulation.outcome import Outcome
from planner.verification.loop import Replayed, Stopped, replay
from planner.verification.partial import ASKED, partial_report, served_by_one
from planner.verification.pool_steps import PoolSteps
from planner.verification.report import compare
from planner.verification.speed import SpeedWatch
from planner.verification_engines import EngineWish, KeptTimes, engines
from planner.verification_results import broken_off, refuse_the_endless, result_of, which_replay, write
from planner.verification_subject import Subject, paced, predict, subject_of
from planner.verifications import why_not
from planner.work import await_simulator

REFITS = 20


def verify(row: Verification, run: JobRun) -> None:
    """Serves the window `replays` times and writes the report."""
    if reason := why_not(row.plan):
        raise JobRefused(reason)
    await_simulator(run, row.plan)
    models, calibration = PoolModels.of(row.plan), row.calibration
    steps = models.steps
    subject = subject_of(row.plan, row.requests)
    if subject.split is not None:
        two_pools_work.verify(row, run, subject, models)
        return
    run.progress(0, 1, "Predicting")
    try:
        subject, pace = paced(subject, row.options.get("load"), steps)
    except ValueError as problem:
        raise JobRefused(f"{problem}") from problem
    predicted = predict(subject, steps)
    refits = [predict(subject, refit) for refit in models.refitted(REFITS, row.seed)]
    refuse_the_endless(predicted.busy_s * row.replays)
    run.write_log(
        f"{subject.requests.count} of {subject.of} requests of one replica, from position {subject.first}; "
        f"predicted to keep the device busy for {predicted.busy_s:.0f} s"
    )
    wish = EngineWish(subject.architecture, subject.longest_tokens, row.seed)
    with engines(calibration, run, wish) as [engine]:
        watch = SpeedWatch.of(engine, samples_of(calibration), row.seed)
        replays = _replays(row, run, subject, engine, steps, predicted, watch)
    speed = watch.speed()
    report = compare(
        predicted, refits, replays, steps, device_kind(calibration.device), seed=row.seed, speed=speed,
        at_speed=predict(subject, steps.scaled(speed.factor)) if speed else None,
    )  # fmt: skip
    write(row, report, result_of(report, subject.first, subject.of, predicted, replays, steps) | pace)
    run.write_log(report.sentence)


def _replays(
    row: Verification,
    run: JobRun,
    subject: Subject,
    engine: EngineClient,
    steps: PoolSteps,
    predicted: Outcome,
    watch: SpeedWatch,
) -> list[Replayed]:
    kept = KeptTimes(row, run, predicted.computed_tokens)
    found: list[Replayed] = []

    def on_step(tokens: int, seconds: float) -> None:
        kept.told(tokens, seconds)
        if not kept.is_known:
            watch.stepped()

    for number in range(row.replays):
        already = kept.begin()
        try:
            watch.look()
            found.append(
                replay(
                    engine, subject.requests, subject.knobs, steps.decode, seed=row.seed + 1_000_003 * number,
                    with_host_gap=device_kind(row.calibration.device) == "gpu", known_s=already,
                    on_step=on_step, should_stop=run.should_stop,
                )
            )  # fmt: skip
        except (Stopped, EngineError) as ended:
            kept.save()
            words = ASKED if isinstance(ended, Stopped) else f"the engine ended. {ended}"
            served = served_by_one(subject.requests, subject.knobs, steps.decode, kept.of[-1])
            which = which_replay(number, row.replays)
            raise broken_off(row, partial_report(served, predicted, words, row.seed, which)) from ended
    kept.save()
    with suppress(EngineError):  # all has been served
        watch.look()
    return found
