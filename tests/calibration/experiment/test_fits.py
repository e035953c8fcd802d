"""What fits is said before a job starts, in bytes needed and free."""

import pytest

from calibration.architecture import PRESETS, parse_config
from calibration.experiment import DEMO_ENVELOPE, BadEnvelope, DoesNotFit, Envelope, check_fits
from calibration.experiment.fits import (
    activation_bytes,
    eight_bit_weight_bytes,
    full_pool_tokens,
    rank_weight_bytes,
    smallest_pool_tokens,
)

GIB = 1 << 30
DEMO = PRESETS["demo"]


def test_the_default_pool_is_a_quarter_of_free_memory_on_a_cpu():
    tokens = check_fits(DEMO, DEMO_ENVELOPE, device="cpu", free_bytes=8 * GIB, dtype="bfloat16")
    assert tokens == 2 * GIB // DEMO.kv_bytes_per_token() // 16 * 16
    assert check_fits(DEMO, DEMO_ENVELOPE, device="cpu", free_bytes=8 * GIB, dtype="float32") * 2 == tokens


def test_the_default_pool_holds_the_largest_batch_where_memory_allows():
    tokens = check_fits(
        DEMO, DEMO_ENVELOPE, device="cpu", free_bytes=GIB // 2, kv_fraction=0.01, dtype="bfloat16"
    )
    assert tokens == full_pool_tokens(DEMO_ENVELOPE)


def test_a_gpu_gives_the_pool_what_the_weights_leave():
    model = PRESETS["llama-3.1-8b"]
    envelope = Envelope(256, 16_384, 8_192)
    tokens = check_fits(model, envelope, device="cuda:0", free_bytes=80 * GIB)
    used = model.weight_bytes() + tokens * model.kv_bytes_per_token() + activation_bytes(model, envelope, 2)
    assert 0.89 * 80 * GIB < used <= 0.9 * 80 * GIB


def test_what_does_not_fit_says_needed_and_free():
    model = PRESETS["llama-3.1-70b"]
    with pytest.raises(DoesNotFit) as refusal:
        check_fits(model, DEMO_ENVELOPE, device="cuda:0", free_bytes=80 * GIB)
    assert refusal.value.needed_bytes > model.weight_bytes() > 80 * GIB == refusal.value.free_bytes
    assert f"{refusal.value.needed_bytes:,}" in str(refusal.value)
    assert f"{80 * GIB:,}" in str(refusal.value)


def test_a_pool_that_was_asked_for_is_taken_or_refused():
    assert check_fits(DEMO, DEMO_ENVELOPE, device="cpu", free_bytes=GIB, kv_tokens=50_000) == 50_000
    with pytest.raises(DoesNotFit):
        check_fits(DEMO, DEMO_ENVELOPE, device="cpu", free_bytes=GIB, kv_tokens=10_000_000)
    least = smallest_pool_tokens(DEMO_ENVELOPE)
    assert check_fits(DEMO, DEMO_ENVELOPE, device="cpu", free_bytes=GIB, kv_tokens=least) == least
    with pytest.raises(DoesNotFit, match="too small"):
        check_fits(DEMO, DEMO_ENVELOPE, device="cpu", free_bytes=GIB, kv_tokens=least - 1)


def test_contexts_that_the_model_does_not_have_are_refused_by_field():
    with pytest.raises(BadEnvelope, match="4,096 positions") as refusal:
        check_fits(DEMO, Envelope(16, 5_000, 512), device="cpu", free_bytes=64 * GIB)
    assert refusal.value.field == "max_context_tokens"
    windowed = parse_config(
        {
            "model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 128,
            "max_position_embeddings": 32_768, "sliding_window": 512,
        }
    )  # fmt: skip
    assert check_fits(windowed, Envelope(16, 512, 512), device="cpu", free_bytes=GIB)
    # Beyond its window too: the engine's layers then see their last 512 tokens.
    assert check_fits(windowed, DEMO_ENVELOPE, device="cpu", free_bytes=GIB)


def test_activations_cover_the_largest_tensors_of_a_step():
    model, envelope = PRESETS["llama-3.1-8b"], Envelope(256, 16_384, 8_192)
    gate_up = envelope.max_step_tokens * 2 * model.intermediate_size * 2
    logits = envelope.max_batch * model.vocab_size * 2
    assert activation_bytes(model, envelope, 2) > 2 * gate_up + logits


MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4_096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 32_000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 32_768,
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "model", [PRESETS["llama-3.1-8b"], parse_config(MIXTRAL)], ids=lambda model: model.name
)
def test_eight_bits_take_about_half_and_a_layer_on_the_way(model, ranks):
    """A byte a weight, two more of a layer while it is drawn, one more of what stays in 16 bits; scales are small."""
    eight = eight_bit_weight_bytes(model, ranks)
    vocabulary = model.vocab_size * model.hidden_size
    stored = model.parameters - 2 * vocabulary
    drawn = 2 * stored / model.layers
    least = stored / ranks + drawn + 2 * vocabulary * (1 + 1 / ranks)
    assert least < eight < 1.01 * least
    assert eight < rank_weight_bytes(model, 2, ranks)


def test_a_model_fits_in_eight_bits_where_it_does_not_in_sixteen():
    model, envelope = PRESETS["llama-3.1-70b"], Envelope(16, 4_096, 2_048)
    for dtype in ("auto", "bfloat16"):
        with pytest.raises(DoesNotFit):
            check_fits(model, envelope, device="cuda:0", free_bytes=120 * GIB, dtype=dtype)
    assert check_fits(model, envelope, device="cuda:0", free_bytes=120 * GIB, dtype="float8") > 16 * 4_096
