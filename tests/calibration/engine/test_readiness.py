"""What is compiled for a step's sizes is compiled before the step is timed, and changes nothing that it computes."""

import torch

from calibration.engine.runner import EngineSpec, TorchRunner
from tests.calibration.engine.test_runner import TINY, batch_of


def runner_of(architecture) -> TorchRunner:
    return TorchRunner(EngineSpec(architecture, "cpu", "float32", kv_tokens=1_600, max_positions=300, seed=1))


def steps():
    """The second continues nothing of the first: each row's context is what the pool was filled with."""
    return [
        batch_of([40, 7], [(30, 50, True), (130, 0, False)]),
        batch_of([41, 8], [(12, 80, True)], seed=1),
    ]


def test_a_rehearsed_step_yields_what_it_yields_unrehearsed(architecture):
    plain, rehearsed = runner_of(architecture), runner_of(architecture)
    for batch in steps():
        rehearsed.decoder.rehearse(rehearsed._stepper.plan(batch))
        assert torch.equal(rehearsed.logits(batch), plain.logits(batch))
    for one, other in zip(rehearsed.decoder.cache.layers, plain.decoder.cache.layers, strict=True):
        assert torch.equal(one, other)


def test_every_kind_of_layer_is_rehearsed(architecture):
    decoder = runner_of(architecture).decoder
    rehearsed = [architecture.window_at(index) for index in decoder._layer_kinds]
    assert set(rehearsed) == decoder.windows
    if architecture.experts is None:
        assert len(rehearsed) == len(decoder.windows)
    else:
        assert len(rehearsed) == architecture.layers


def test_sizes_are_rehearsed_once(monkeypatch):
    runner = runner_of(TINY)
    rehearsed = []
    monkeypatch.setattr(runner.decoder, "rehearse", lambda plan: rehearsed.append(len(plan.token_ids)))
    mixed = ([40, 7], [(30, 50, True)])
    for seed in range(3):
        runner.measure(*mixed, seed)
    assert rehearsed == [32], "later repeats of a step have nothing new"
    runner.measure([60, 99], [(30, 50, True)], 0)
    assert rehearsed == [32], "contexts of decodes are not compiled for"
    runner.measure([60, 99], [(30, 51, True)], 0)
    runner.measure([60, 99, 5], [(29, 50, True)], 0)
    runner.measure([60, 99], [(30, 50, False)], 0)
    assert rehearsed == [32] * 4, "a chunk's attention, another number of chunk's tokens, of sampled rows"
    runner.measure([60], [], 0)
    runner.measure([61], [], 0)
    assert rehearsed == [*[32] * 4, 1]
