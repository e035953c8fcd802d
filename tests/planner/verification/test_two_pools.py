"""Two pools on engines of their own: the simulator's batches, KV that really arrives, and what a dead engine leaves."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from calibration.architecture import Architecture
from calibration.engine.client import EngineClient, EngineError
from calibration.engine.interface import ServedStep, StepTiming
from calibration.steptime import step_seconds
from calibration.transfer import TransferTable, transfer_parts
from planner.search.requests import Requests
from planner.simulation import reference
from planner.simulation.cluster import reference as cluster
from planner.simulation.cluster.deployment import (
    AFTER_PREFILL,
    PULL,
    PUSH_CHUNKS,
    Disaggregated,
    HandOff,
    Network,
    pool,
)
from planner.simulation.kernel.cluster import simulate as simulate_compiled
from planner.simulation.knobs import VllmKnobs
from planner.verification.loop import Stopped
from planner.verification.partial import partial_report, served_by_pools
from planner.verification.sequences import Blocks, Sequences
from planner.verification.two_pools import TwoPools, measure_hand_off, replay_two_pools
from tests.planner.verification.device import LAW, some_requests

KNOBS = VllmKnobs(max_num_batched_tokens=64, max_num_seqs=8, num_blocks=64)
TIGHT = VllmKnobs(max_num_batched_tokens=48, max_num_seqs=6, num_blocks=20, async_scheduling=False)
BYTES_PER_TOKEN = 1_000.0
TABLE = TransferTable.link(0.002, 1e-3, 0.0)  # slow: transfers overlap and share
MODES = (PULL, AFTER_PREFILL, PUSH_CHUNKS)


def deployment(mode: str, knobs=KNOBS, prefill=1, decode=1, table=TABLE) -> Disaggregated:
    return Disaggregated(
        pool(prefill, knobs, LAW),
        pool(decode, knobs, LAW),
        HandOff(mode, BYTES_PER_TOKEN),
        Network.cards(table),
    )


class LawDrive:
    """Takes as long as the simulator thinks."""

    def step(self, replica, rows):
        return step_seconds(LAW, *reference.features(rows))[0]

    def transfer(self, sender, receiver, first_token, tokens):
        return transfer_parts(TABLE.arrays(), tokens * BYTES_PER_TOKEN)


@pytest.fixture(scope="module")
def requests() -> Requests:
    return some_requests(80)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("knobs", "prefill", "decode"), [(KNOBS, 1, 1), (KNOBS, 2, 1), (TIGHT, 1, 2)])
def test_fed_the_same_times_the_batches_are_the_simulators(requests, mode, knobs, prefill, decode):
    asked = (requests.arrival_s, requests.prompt_tokens, requests.output_tokens, None)
    there = deployment(mode, knobs, prefill, decode)
    found = cluster.simulate(*asked, there, drive=LawDrive(), record_steps=True)
    expected = simulate_compiled(*asked, there, record_steps=True)
    for side in ("prefill", "decode"):
        for ours, theirs in zip(getattr(found, side), getattr(expected, side), strict=True):
            for name in ("offsets", "request", "tokens", "cached", "start_s", "end_s"):
                assert np.array_equal(getattr(ours.record, name), getattr(theirs.record, name)), name
    assert np.array_equal(found.kv_ready_s, expected.kv_ready_s, equal_nan=True)
    assert np.array_equal(found.requests.done_s, expected.requests.done_s, equal_nan=True)


class Engine:
    """Its KV holds the token ids themselves, and what it samples depends on all that a row can read there."""

    shared: list[list[int]] = []

    def __init__(self, blocks: int, dies_after: int | None = None) -> None:
        self.kv = np.random.default_rng(1).integers(0, 1 << 30, (blocks, 16))
        self.steps, self.dies_after = 0, dies_after

    def serve(self, step: ServedStep) -> tuple[StepTiming, list[int]]:
        self.steps += 1
        if self.dies_after is not None and self.steps > self.dies_after:
            raise RuntimeError("the engine process ended (signal 9)")
        ids, sampled = list(step.token_ids), []
        rows = zip(step.query_tokens, step.cached_tokens, step.block_tables, step.sampled, strict=True)
        written: set[int] = set()
        for query, cached, table, emits in rows:
            for position in range(cached, cached + query):
                self.kv[table[position // 16], position % 16] = ids.pop(0)
            assert not written & set(table), "two rows share a block"
            written |= set(table)
            if emits:
                read = [int(self.kv[table[i // 16], i % 16]) for i in range(cached + query)]
                sampled.append(hash(tuple(read)) % 1_000)
        return StepTiming(1e-3 + 1e-5 * sum(step.query_tokens), 0.0, False), sampled

    def export_kv(self, blocks) -> float:
        type(self).shared = self.kv[list(blocks)].tolist()
        return 1e-4 * len(blocks)

    def import_kv(self, blocks) -> float:
        self.kv[list(blocks)] = self.shared
        return 1e-4 * len(blocks)


def drive_of(requests: Requests, engines: list[Engine], **more) -> TwoPools:
    pools = [Blocks.of(len(engine.kv), 16, seed) for seed, engine in enumerate(engines)]
    sequences = Sequences(requests.prompt_tokens.tolist(), 1_000, 3)
    return TwoPools(engines, pools, sequences, BYTES_PER_TOKEN, **more)


def continued_alone(requests: Requests, drive: TwoPools, index: int) -> list[int]:
    """What one engine that does everything samples for the request."""
    engine, ids = Engine(64), drive.sequences.ids(index)[: requests.prompt_tokens[index]]
    table, found = list(range(12)), list(ids)
    _, [token] = engine.serve(ServedStep(ids, [len(ids)], [0], [table], [True]))
    found.append(token)
    while len(found) < requests.prompt_tokens[index] + requests.output_tokens[index]:
        _, [token] = engine.serve(ServedStep([token], [1], [len(found) - 1], [table], [True]))
        found.append(token)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("knobs", [KNOBS, TIGHT])
def test_what_was_handed_over_is_what_is_read(requests, mode, knobs):
    drive = drive_of(requests, [Engine(knobs.num_blocks) for _ in range(2)])
    replayed, outcome = replay_two_pools(drive, requests, deployment(mode, knobs))
    assert drive.sequences.differing == 0
    if mode == PULL:  # the last prompt token is computed on both sides
        assert drive.sequences.computed_twice >= int(outcome.handed_over.sum())
    for index in range(0, requests.count, 7):
        assert drive.sequences.ids(index) == continued_alone(requests, drive, index), index
    assert len(replayed.seconds) == outcome.requests.steps
    assert drive.hand_offs.size_bytes.sum() == pytest.approx(np.nansum(outcome.moved_bytes))
    assert set(drive.replicas) == {0, 1}


def test_lost_kv_is_noticed(requests):
    class Forgets(Engine):
        def import_kv(self, blocks):
            return 1e-4

    drive = drive_of(requests, [Engine(64), Forgets(64)])
    replay_two_pools(drive, requests, deployment(PULL))
    assert drive.sequences.differing > 0.9 * drive.sequences.computed_twice


def test_an_engine_that_dies_leaves_what_was_done(requests):
    drive = drive_of(requests, [Engine(64), Engine(64, dies_after=40)])
    with pytest.raises(RuntimeError, match="signal 9"):
        replay_two_pools(drive, requests, deployment(PULL))
    assert drive.replicas.count(1) == 40
    finished = [leg for leg in drive.legs.values() if leg.finished]
    assert 0 < len(finished) < requests.count
    assert all(leg.last_token_s >= leg.first_token_s > 0 for leg in finished)


def test_it_resumes_from_the_times_it_had(requests):
    whole = drive_of(requests, [Engine(64), Engine(64)])
    expected, _ = replay_two_pools(whole, requests, deployment(PULL))
    first = drive_of(requests, [Engine(64), Engine(64)])
    first.should_stop = lambda: len(first.times_s) >= 90
    with pytest.raises(Stopped) as stopped:
        replay_two_pools(first, requests, deployment(PULL))
    engines = [Engine(64), Engine(64)]
    again, _ = replay_two_pools(
        drive_of(requests, engines, known_s=stopped.value.steps_s), requests, deployment(PULL)
    )
    assert 0 < sum(engine.steps for engine in engines) < len(whole.seconds)
    assert np.array_equal(again.outcome.done_s, expected.outcome.done_s)


TINY = Architecture(
    name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
    intermediate_size=96, vocab_size=256, tie_word_embeddings=True, max_position_tokens=256,
)  # fmt: skip


def test_a_killed_decode_process_yields_a_clear_partial_report(requests):
    few = requests.first(30)
    descriptor = os.memfd_create("kv")
    os.ftruncate(descriptor, 1 << 20)
    started = {"dtype": "float32", "kv_tokens": 2_048, "max_positions": 256, "lock_descriptors": [descriptor]}
    try:
        with EngineClient(TINY, **started) as prefill, EngineClient(TINY, **started) as decode:
            for engine in (prefill, decode):
                engine.attach(descriptor, 1 << 20)
            drive = TwoPools(
                [prefill, decode], [Blocks.of(128, 16, i) for i in range(2)],
                Sequences(few.prompt_tokens.tolist(), 256, 3), 512.0,
            )  # fmt: skip

            def kill(tokens, seconds):
                if drive.replicas.count(1) == 60:
                    os.kill(decode.pid, signal.SIGKILL)

            drive.on_time = kill
            there = deployment(PULL)
            with pytest.raises(EngineError, match="signal 9") as ended:
                replay_two_pools(drive, few, there)
    finally:
        os.close(descriptor)
    predicted = simulate_compiled(few.arrival_s, few.prompt_tokens, few.output_tokens, None, there).requests
    words = f"the decode engine ended. {ended.value}"
    report = partial_report(served_by_pools(drive, 1), predicted, words)
    partial = report["partial"]
    assert drive.at == 1
    assert partial["steps"]["decode"] == 60
    assert 2 <= partial["finished"] < partial["of"] == 30
    assert "broke off after" in report["sentence"]
    assert f"{partial['finished']} of 30 requests finished" in report["sentence"]
    assert "signal 9" in report["sentence"]
    assert {line["metric"] for line in report["lines"]} == {"ttft", "tpot", "e2e"}
    assert all(line["bar"] is None and line["measured_s"] > 0 for line in report["lines"])
    json.dumps(report, allow_nan=False)


def test_logits_after_a_hand_off_between_processes_are_those_of_one_engine():
    descriptor = os.memfd_create("kv")
    os.ftruncate(descriptor, 1 << 20)
    prompt = np.random.default_rng(2).integers(0, 256, 50).tolist()
    started = {"dtype": "float32", "kv_tokens": 256, "max_positions": 128, "seed": 1}
    try:
        with (
            EngineClient(TINY, lock_descriptors=[descriptor], **started) as sender,
            EngineClient(TINY, lock_descriptors=[descriptor], **started) as receiver,
        ):
            for engine in (sender, receiver):
                engine.attach(descriptor, 1 << 20)
            here, there = [3, 9, 1, 14], [7, 0, 15, 4]
            _, [token] = sender.serve(ServedStep(prompt, [50], [0], [here], [True]))
            table = measure_hand_off(sender, receiver, 16, 16, 512.0, 0)
            assert all(rate > 0 for rate in table.bytes_per_s)
            sender.serve(ServedStep(prompt, [50], [0], [here], [True]))  # the measuring overwrote blocks
            assert sender.export_kv(here) >= 0
            assert receiver.import_kv(there) >= 0
            step = [[token], [1], [50]]
            moved = receiver.logits(ServedStep(*step, [there], [True]))
            alone = sender.logits(ServedStep(*step, [here], [True]))
            elsewhere = receiver.logits(ServedStep(*step, [[5, 6, 8, 10]], [True]))
    finally:
        os.close(descriptor)
    assert np.array_equal(moved, alone)
    assert not np.allclose(elsewhere, alone)
