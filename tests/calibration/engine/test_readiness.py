"""What is compiled for a step's sizes is compiled before the step is timed, and changes nothing that it computes."""

import torch

from calibration.engine.runner import EngineSpec, TorchRunner
from calibration.engine.stepping import PlainStepper
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
        rehearsed._stepper.ready(batch)
        assert torch.equal(rehearsed.logits(batch), plain.logits(batch))
    for one, other in zip(rehearsed.decoder.cache.layers, plain.decoder.cache.layers, strict=True):
        assert torch.equal(one, other)


def test_sizes_are_rehearsed_once(monkeypatch):
    runner = runner_of(TINY)
    rehearsed = []
    prepare = runner._stepper.prepare

    def ready(batch):
        """The sizes of the steps that run before the timed one."""
        with monkeypatch.context() as patched:
            patched.setattr(
                PlainStepper, "prepare", lambda self, b: rehearsed.append(len(b.token_ids)) or prepare(b)
            )
            PlainStepper.ready(runner._stepper, batch)

    monkeypatch.setattr(runner._stepper, "ready", ready)
    mixed = ([40, 7], [(30, 50, True)])
    for seed in range(3):
        runner.measure(*mixed, seed)
    assert rehearsed == [32, 1], "later repeats of a step have nothing new"
    runner.measure([60, 99], [(30, 50, True)], 0)
    assert rehearsed == [32, 1], "contexts of decodes are not compiled for"
    runner.measure([60, 99], [(30, 51, True)], 0)
    runner.measure([60, 99, 5], [(29, 50, True)], 0)
    runner.measure([60, 99], [(30, 50, False)], 0)
    assert rehearsed == [32, 1] * 4, "a chunk's attention, another number of chunk's tokens, of sampled rows"
    runner.measure([60], [], 0)
    runner.measure([61], [], 0)
    assert rehearsed == [*[32, 1] * 4, 1, 1]
