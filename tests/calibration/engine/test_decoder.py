"""The same logits whichever way a sequence is cut into steps, and the right ones.

Tolerances, on logits of standard deviation about 1: float32 against float64 2e-4 (rounding through two layers
leaves about 1e-6 and no shape left more than 1e-5); bfloat16 0.15 (8 bits of mantissa leave about 0.02).
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from calibration.engine.attention import QUERY_BLOCK_TOKENS

_spec = importlib.util.spec_from_file_location("decoder_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

FLOAT32 = 2e-4
BFLOAT16 = 0.15


def close(ours, wanted, tolerance=FLOAT32):
    assert ours.shape == wanted.shape
    assert torch.isfinite(ours).all()
    assert float((ours.double() - wanted.double()).abs().max()) < tolerance


def test_parameters_counted_from_config_are_those_of_the_built_tensors(architecture, make_engine):
    assert make_engine(architecture).decoder.weights.parameters == architecture.parameters


def test_kv_bytes_per_token_are_those_of_the_built_pool(architecture, make_engine):
    cache = make_engine(architecture).cache
    held = sum(layer.numel() * layer.element_size() for layer in cache.layers)
    assert held == cache.tokens * architecture.kv_bytes_per_token(bytes_per_element=4)


def test_whole_prefill_is_the_reference(architecture, make_engine, tokens):
    engine = make_engine(architecture)
    wanted = reference.reference_logits(architecture, engine.decoder.weights, tokens(40))
    assert 0.3 < float(wanted.std()) < 3
    close(engine.step([("a", tokens(40))]), wanted[-1:])


def test_decode_after_prefill_is_one_forward_over_all_tokens(architecture, make_engine, tokens):
    engine = make_engine(architecture)
    ids = tokens(40)
    wanted = reference.reference_logits(architecture, engine.decoder.weights, ids)
    close(engine.step([("a", ids[:30])]), wanted[29:30])
    for position in range(30, 40):
        close(engine.step([("a", ids[position : position + 1])]), wanted[position : position + 1])


@pytest.mark.parametrize(
    "cuts", [[15, 16, 17], [1, 2, 3], [128], [127, 129], [100, 101, 299], [16, 32, 48, 64]]
)
def test_chunked_and_whole_prefill_give_the_same_logits(make_engine, tokens, cuts):
    architecture = _llama()
    ids = tokens(300)
    whole = make_engine(architecture).step([("a", ids)])
    chunked = make_engine(architecture)
    for begin, end in zip([0, *cuts], [*cuts, 300], strict=True):
        last = chunked.step([("a", ids[begin:end])])
    close(last, whole)
    wanted = reference.reference_logits(architecture, chunked.decoder.weights, ids)
    close(whole, wanted[-1:])


@pytest.mark.parametrize("length", [QUERY_BLOCK_TOKENS + offset for offset in (-1, 0, 1, QUERY_BLOCK_TOKENS)])
def test_every_position_around_a_query_block_sees_its_past_only(make_engine, tokens, length):
    """Row by row: the last token of each prefix, all in one step, beside each other."""
    architecture = _llama()
    ids = tokens(length)
    engine = make_engine(architecture, blocks=256)
    wanted = reference.reference_logits(architecture, engine.decoder.weights, ids)
    ends = [1, 2, length // 2, length - 1, length]
    close(engine.step([(str(end), ids[:end]) for end in ends]), wanted[[end - 1 for end in ends]])


def test_a_mixed_step_is_its_rows_apart(architecture, make_engine, tokens):
    """Three decodes, a first chunk, a later chunk and a whole prompt in one forward, blocks shuffled."""
    sequences = {name: tokens(length, seed) for seed, (name, length) in enumerate(
        {"a": 20, "b": 33, "c": 5, "d": 50, "e": 61, "f": 17}.items()
    )}  # fmt: skip
    engine = make_engine(architecture, shuffle=3, poison=True)
    engine.step([(name, sequences[name][:-1]) for name in "abc"], sampled=[False] * 3)
    engine.step([("e", sequences["e"][:21])], sampled=[False])
    ours = engine.step(
        [(name, sequences[name][-1:]) for name in "abc"]
        + [("d", sequences["d"][:30]), ("e", sequences["e"][21:]), ("f", sequences["f"])],
        sampled=[True, True, True, False, True, True],
    )
    wanted = [
        reference.reference_logits(architecture, engine.decoder.weights, sequences[name])[-1]
        for name in "abcef"
    ]
    close(ours, torch.stack(wanted))


def test_shuffled_blocks_give_what_contiguous_ones_give(make_engine, tokens):
    def run(shuffle):
        engine = make_engine(_llama(), shuffle=shuffle)
        engine.step([("a", tokens(70)), ("b", tokens(20, 1))])
        return engine.step([("a", [3]), ("b", tokens(40, 2))])

    contiguous = run(None)
    for seed in range(3):
        assert torch.equal(run(seed), contiguous)


def test_unused_cache_never_enters_a_sum(make_engine, tokens):
    """The whole pool is NaN but for what the step itself and its own past wrote."""
    clean, poisoned = (make_engine(_llama(), shuffle=5, poison=poison) for poison in (False, True))
    for engine in (clean, poisoned):
        engine.step([("a", tokens(19)), ("b", tokens(33, 1))])
    rows = [("a", [1]), ("b", tokens(150, 2)), ("c", [2])]
    assert torch.equal(clean.step(rows), poisoned.step(rows))


def test_only_sampled_rows_yield_logits(make_engine, tokens):
    rows = [("a", tokens(9)), ("b", tokens(4, 1)), ("c", tokens(12, 2))]
    everything = make_engine(_llama()).step(rows)
    some = make_engine(_llama()).step(rows, sampled=[True, False, True])
    close(some, everything[[0, 2]], 1e-5)
    assert make_engine(_llama()).step(rows, sampled=[False] * 3).shape == (0, 128)


def test_bfloat16_stays_near_the_reference(architecture, make_engine, tokens):
    engine = make_engine(architecture, dtype=torch.bfloat16)
    ids = tokens(40)
    wanted = reference.reference_logits(architecture, engine.decoder.weights, ids)
    close(engine.step([("a", ids[:25])]), wanted[24:25], BFLOAT16)
    close(engine.step([("a", ids[25:39])]), wanted[38:39], BFLOAT16)
    close(engine.step([("a", ids[39:])]), wanted[39:], BFLOAT16)


def test_float64_is_the_reference_to_the_last_digits(architecture, make_engine, tokens):
    engine = make_engine(architecture, dtype=torch.float64)
    wanted = reference.reference_logits(architecture, engine.decoder.weights, tokens(200))
    engine.step([("a", tokens(200)[:150])])
    close(engine.step([("a", tokens(200)[150:])]), wanted[-1:], 1e-9)


def test_positions_beyond_the_rotary_table_are_an_error(make_engine, tokens):
    engine = make_engine(_llama())
    with pytest.raises(IndexError):
        engine.step([("a", np.tile(tokens(100), 6))])


def _llama():
    from calibration.architecture import Architecture

    return Architecture(
        name="tiny", model_type="llama", layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=16,
        intermediate_size=96, vocab_size=128, tie_word_embeddings=True,
    )  # fmt: skip
