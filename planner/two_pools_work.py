"""The work behind a replay of two pools: an engine process for every replica, hand-offs between them, a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration.engine.client import EngineClient, EngineError
from calibration.jobs import JobRefused, JobRun
from calibration.pipeline import device_kind
from calibration.transfer import TransferTable
from planner.models import Verification
from planner.pool_models import PoolModels
from planner.simulation.outcome import Outcome
from planner.verification.loop import Replayed, Stopped
from planner.verification.partial import ASKED, partial_report, served_by_pools
from planner.verification.pool_steps import PoolSteps
from planner.verification.report import compare
from planner.verification.sequences import Blocks, Sequences
from planner.verification.two_pools import HandOffs, TwoPools, measure_hand_off, replay_two_pools
from planner.verification_engines import EngineWish, KeptTimes, engines
from planner.verification_results import broken_off, refuse_the_endless, result_of, which_replay, write
from planner.verification_subject import Subject, paced, predict

BLOCK_TOKENS = 16  # of the engine; a scheduler's blocks may be larger or smaller
REFITS = 20
SLACK_BLOCKS = 64  # beyond what the scheduler counts: hand-offs are measured there, and pages are rounded up


def verify(row: Verification, run: JobRun, subject: Subject, models: PoolModels) -> None:
    """Serves the window `replays` times on as many engines as the plan has replicas, and writes the report. Of one that
    broke off because an engine ended it writes what had been done."""
    wish, calibration, steps = _wish(subject, row.seed), row.calibration, models.steps
    with engines(calibration, run, wish) as found:
        token_bytes = subject.token_bytes
        run.progress(0, 1, "Measuring hand-offs")
        blocks = (wish.kv_tokens or 0) // BLOCK_TOKENS
        table = measure_hand_off(found[0], found[-1], blocks, BLOCK_TOKENS, token_bytes, row.seed)
        run.progress(0, 1, "Predicting")
        try:
            subject, pace = paced(subject, row.options.get("load"), steps, table)
        except ValueError as problem:
            raise JobRefused(f"{problem}") from problem
        predicted = predict(subject, steps, table)
        refits = [predict(subject, refit, table) for refit in models.refitted(REFITS, row.seed)]
        refuse_the_endless(predicted.busy_s * row.replays)
        run.write_log(
            f"{subject.requests.count} of {subject.of} requests on {wish.count} engines, hand-offs over "
            f"{table.label}; predicted to keep them busy for {predicted.busy_s:.0f} s together"
        )
        replays, moved = _replays(row, run, subject, found, blocks, steps, predicted, table)
    report = compare(predicted, refits, replays, steps, device_kind(calibration.device), seed=row.seed)
    result = result_of(report, subject.first, subject.of, predicted, replays, steps) | pace
    write(row, report, result | {"hand_offs": hand_offs_of(moved, table, subject)})
    run.write_log(report.sentence)


def _wish(subject: Subject, seed: int) -> EngineWish:
    most = max(pool.knobs.profile.num_blocks * pool.knobs.profile.block_size for pool in subject.pools)
    seats = max(pool.knobs.profile.seats for pool in subject.pools)
    tokens = most + BLOCK_TOKENS * (min(seats, subject.requests.count) + SLACK_BLOCKS)
    longest = -(-subject.longest_tokens // BLOCK_TOKENS) + 1
    largest = max(longest, SLACK_BLOCKS) * BLOCK_TOKENS * subject.architecture.kv_bytes_per_token(4)
    return EngineWish(
        subject.architecture, subject.longest_tokens, seed, subject.replicas, tokens, shared_bytes=largest
    )


def _replays(
    row: Verification,
    run: JobRun,
    subject: Subject,
    found: Sequence[EngineClient],
    blocks: int,
    steps: PoolSteps,
    predicted: Outcome,
    table: TransferTable,
) -> tuple[list[Replayed], HandOffs]:
    kept = KeptTimes(row, run, predicted.computed_tokens)
    replays: list[Replayed] = []
    for number in range(row.replays):
        seed = row.seed + 1_000_003 * number
        drive = TwoPools(
            found, [Blocks.of(blocks, BLOCK_TOKENS, seed + i) for i in range(len(found))],
            Sequences(subject.requests.prompt_tokens.tolist(), subject.architecture.vocab_size, seed),
            subject.token_bytes,
            with_host_gap=device_kind(row.calibration.device) == "gpu", known_s=kept.begin(),
            on_time=kept.told, should_stop=run.should_stop,
        )  # fmt: skip
        try:
            replays.append(replay_two_pools(drive, subject.requests, subject.deployment(steps, table))[0])
        except (Stopped, EngineError) as ended:
            kept.save()
            prefill = subject.pools[0].replicas
            who = "prefill" if drive.at < prefill else "decode"
            words = ASKED if isinstance(ended, Stopped) else f"the {who} engine ended. {ended}"
            which = which_replay(number, row.replays)
            report = partial_report(served_by_pools(drive, prefill), predicted, words, row.seed, which)
            raise broken_off(row, report) from ended
    kept.save()
    return replays, drive.hand_offs


def hand_offs_of(moved: HandOffs, table: TransferTable, subject: Subject) -> dict[str, Any]:
    """Hand-offs of the last replay against the table that was measured before it; and the plan's own link, over which
    none of this went."""
    priced = sum(table.seconds(size) for size in moved.size_bytes.tolist())
    measured = float(moved.seconds.sum())
    return {
        "count": len(moved.seconds), "bytes": float(moved.size_bytes.sum()), "over": table.label,
        "plans_link": subject.link.table.label,
        "median_s": float(np.median(moved.seconds)) if len(moved.seconds) else None,
        "error": priced / measured - 1.0 if measured > 0.0 else None,
        "computed_twice": moved.computed_twice, "differing": moved.differing,
    }  # fmt: skip
