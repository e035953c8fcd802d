"""The roofline by hand: a small model's bytes and operations, counted on paper."""

import math

import pytest

from calibration.architecture import PRESETS, Architecture, parse_config
from calibration.device_report import device_report, profiled_steps
from calibration.engine.client import EngineError
from calibration.experiment import Envelope
from calibration.roofline import Ceilings, judge, load_of, weights_in_eight_bits
from calibration.steptime import Chunk, StepSample, StepShape
from tests.calibration.configs import CONFIGS

SMALL = Architecture(
    name="small", model_type="llama", layers=2, hidden_size=8, heads=2, kv_heads=1, head_dim=4, intermediate_size=16,
    vocab_size=32,
)  # fmt: skip
MATRICES = 2 * (8 * (2 * 8 + 2 * 4) + 3 * 8 * 16)
NORMS = 5 * 8
KV_BYTES = 2 * 2 * 4 * 2  # layers, K and V, head, bf16
H200 = Ceilings(4.3e12, 780e12)


def sample(shape, seconds):
    return StepSample(shape=shape, seconds=(seconds,) * 5, role="fit")


def test_a_decode_moves_weights_and_its_context_once():
    load = load_of(StepShape((100, 30)), SMALL)
    head = 32 * 8  # the embedding is looked up, not read
    assert load.moved_bytes == (MATRICES + NORMS + head) * 2 + (130 + 2) * KV_BYTES
    pairs = 130 + 2
    assert load.operations == 2 * MATRICES * 2 + 2 * head * 2 + pairs * 2 * 2 * (2 * 4) * 2
    slow_memory, slow_arithmetic = Ceilings(1e6, 1e12), Ceilings(1e12, 1e6)
    assert load.floor_s(slow_memory) == load.moved_bytes / 1e6
    assert load.floor_s(slow_arithmetic) == load.operations / 1e6


def test_weights_in_eight_bits_are_read_as_such_and_caches_and_head_are_not():
    head = 32 * 8
    eight, sixteen = (load_of(StepShape((100,)), SMALL, eight_bits=eight) for eight in (True, False))
    assert eight.moved_bytes == MATRICES + NORMS + 2 * head + 101 * KV_BYTES
    assert sixteen.moved_bytes - eight.moved_bytes == MATRICES + NORMS
    assert eight.operations == sixteen.operations
    mixture, latent = (parse_config(CONFIGS[name]) for name in ("mixtral", "deepseek_v3"))
    expert = 3 * 96 * 160 * 6  # of all six layers, a byte a weight
    one, many = (load_of(StepShape((1,) * n), mixture, eight_bits=True).moved_bytes for n in (1, 400))
    assert many - one - 399 * mixture.kv_bytes_per_token() * 2 == pytest.approx(6 * expert)
    ups = (
        latent.layers
        * latent.heads
        * latent.latent.rank
        * (latent.latent.nope_size + latent.latent.value_size)
    )
    both = [load_of(StepShape((1,) * 4_000), latent, eight_bits=eight).moved_bytes for eight in (True, False)]
    head = latent.vocab_size * latent.hidden_size
    stored = latent.parameters - head * (not latent.tie_word_embeddings)
    assert both[1] - both[0] == pytest.approx(stored - head - ups, rel=1e-6)


def test_the_record_of_an_engine_says_whether_its_weights_have_eight_bits():
    assert weights_in_eight_bits({"weights": "float8_e4m3fn, a scale per row"})
    assert not weights_in_eight_bits({"weights": "as dtype"}) and not weights_in_eight_bits({})


def test_a_window_bounds_what_is_read():
    a = parse_config(CONFIGS["gemma2"])  # 3 of 6 layers keep 256 tokens
    layer = 2 * 2 * 16 * 2
    near, far = (load_of(StepShape((context,)), a).moved_bytes for context in (256, 1_000))
    assert far - near == 744 * 3 * layer


def test_few_tokens_read_few_experts():
    a = parse_config(CONFIGS["mixtral"])  # 2 of 8 experts a token
    expert = 3 * 96 * 160 * 2 * 6
    one, two, many = (load_of(StepShape((1,) * n), a).moved_bytes for n in (1, 2, 400))
    per_token = a.kv_bytes_per_token() * 2
    assert two - one - per_token == pytest.approx(
        2 * expert * 0.75
    )  # the second meets what the first did by 1/4
    assert many - one - 399 * per_token == pytest.approx(6 * expert)


def test_intensity_says_which_ceiling_binds():
    model = PRESETS["llama-3.1-8b"]
    decode, prefill = load_of(StepShape((1_024,)), model), load_of(StepShape((), (Chunk(2_048, 0),)), model)
    assert 0.9 < decode.intensity < 1.1
    assert 1_500 < prefill.intensity < 2_200
    assert decode.intensity < H200.ridge < prefill.intensity
    assert H200.ridge == pytest.approx(181.4, abs=0.1)


@pytest.mark.parametrize(
    ("decode_share", "prefill_share", "words"),
    [
        (0.66, 0.61, []),
        (0.64, 0.61, ["64% of the measured copy"]),
        (0.66, 0.59, ["59% of the measured matmul"]),
    ],
)
def test_below_the_floors_it_is_not_representative(decode_share, prefill_share, words):
    model = PRESETS["llama-3.1-8b"]
    shapes = StepShape((128,)), StepShape((), (Chunk(2_048, 0),))
    decode, prefill = (load_of(shape, model) for shape in shapes)
    samples = [
        sample(shapes[0], decode.moved_bytes / H200.copy_bytes_per_s / decode_share),
        sample(StepShape((4_000,)), 1.0),  # a longer context is not the one that is judged
        sample(shapes[1], prefill.operations / H200.matmul_flops_per_s / prefill_share),
        sample(StepShape((), (Chunk(64, 0),)), 1.0),
        sample(StepShape((), (Chunk(2_048, 64),)), 1.0),
    ]
    judged = judge(samples, model, H200, gpu=True)
    assert judged.decode["share_of_copy"] == pytest.approx(decode_share)
    assert judged.prefill["share_of_matmul"] == pytest.approx(prefill_share)
    assert (judged.decode["bound_by"], judged.prefill["bound_by"]) == ("memory", "arithmetic")
    assert len(judged.reasons) == len(words)
    for reason, word in zip(judged.reasons, words, strict=True):
        assert word in reason
    assert judge(samples, model, H200, gpu=False).reasons == ()


def test_what_was_not_measured_is_a_reason_too():
    model = PRESETS["llama-3.1-8b"]
    reasons = judge([sample(StepShape((), (Chunk(512, 0),)), 1.0)], model, H200, gpu=True).reasons
    assert ["no decode" in reasons[0], "no prefill near 2,048" in reasons[1]] == [True, True]


@pytest.mark.parametrize(
    "found",
    [
        None,
        3,
        {},
        {"copy_bytes_per_s": 1.0},
        {"copy_bytes_per_s": 0, "matmul_flops_per_s": 1},
        {"copy_bytes_per_s": True, "matmul_flops_per_s": 1},
    ],
)
def test_an_imported_environment_may_hold_anything(found):
    assert Ceilings.from_environment({"ceilings": found}) is None


class FakeEngine:
    """Answers like a GPU of ours, or breaks."""

    def __init__(self, breaks=False):
        self.breaks = breaks

    def environment(self):
        return {"dtype": "bfloat16", "operations": "triton", "captured_decode_batches": [1, 8]}

    def ceilings(self):
        if self.breaks:
            raise EngineError("out of memory")
        return {"copy_bytes_per_s": 4.3e12, "matmul_flops_per_s": 780e12}

    def breakdown(self, decodes, chunks, seed):
        return {"matmul": 0.5, "attention": 0.3, "memory": 0.1, "gaps": 0.1, "wall_s": 1.0}


def report(engine, samples):
    model = PRESETS["llama-3.1-8b"]
    return device_report(
        engine, model, Envelope(8, 4_096, 2_048), samples, kv_tokens=65_536, seed=0, gpu=True
    )


def test_a_report_is_json_safe_and_labels_what_is_slow():
    slow = [sample(StepShape((128,)), 1.0), sample(StepShape((), (Chunk(2_048, 0),)), 1.0)]
    found = report(FakeEngine(), slow)
    assert found["representative"] is False
    assert len(found["roofline"]["reasons"]) == 2
    assert found["captured_decode_batches"] == [1, 8]
    assert set(found["breakdown"]) == {"prefill", "decode", "mixed"}
    assert all(math.isfinite(value) for value in found["ceilings"].values())


def test_a_device_that_cannot_be_asked_leaves_the_reason():
    assert report(FakeEngine(breaks=True), []) == {"device_report_error": "out of memory"}


@pytest.mark.parametrize(
    "envelope", [Envelope(1, 2, 1), Envelope(16, 1_024, 512), Envelope(256, 8_192, 8_192)]
)
@pytest.mark.parametrize("kv_tokens", [4_096, 400_000])
def test_profiled_steps_fit_the_pool_and_the_envelope(envelope, kv_tokens):
    for decodes, chunks in profiled_steps(envelope, kv_tokens).values():
        blocks = sum(-(-(context + 1) // 16) for context in decodes)
        blocks += sum(-(-(query + cached) // 16) for query, cached, _ in chunks)
        assert blocks * 16 <= kv_tokens
        assert len(decodes) <= envelope.max_batch
        assert len(decodes) + sum(query for query, _, _ in chunks) <= max(2, envelope.max_step_tokens)


def test_the_floor_under_a_curve_is_the_step_s_own():
    from calibration.roofline import floor_of
    from calibration.steptime import features_of

    chunks = StepShape((), (Chunk(300, 0),)), StepShape((), (Chunk(40, 200),))
    shapes = [StepShape((64,)), StepShape((700,) * 9), *chunks, StepShape((90,) * 3, (Chunk(200, 0),))]
    for name in ("llama", "mixtral", "deepseek_v3", "gemma2"):
        a = parse_config(CONFIGS[name])
        for ceilings in (Ceilings(1e9, 1e15), Ceilings(1e15, 1e9)):
            wanted = [load_of(shape, a).floor_s(ceilings) for shape in shapes]
            assert floor_of(a, ceilings)(features_of(shapes)) == pytest.approx(wanted, rel=0.02)


def test_a_page_s_rows_from_a_record_and_nothing_from_nonsense():
    from calibration.device_table import device_floor, device_table

    slow = [sample(StepShape((128,)), 1.0), sample(StepShape((), (Chunk(2_048, 0),)), 1.0)]
    table = device_table(report(FakeEngine(), slow))
    assert [row.name for row in table.steps] == ["Decode, one sequence", "Prefill, 2,048 tokens"]
    assert [row.name for row in table.phases] == ["prefill", "decode", "mixed"]
    assert table.tera_flops_per_s == 780
    assert len(table.reasons) == 2
    rates = {"copy_bytes_per_s": 1.0, "matmul_flops_per_s": 1.0}
    odd = {"ceilings": rates, "roofline": {"decode": [], "prefill": {"share_of_copy": "x"}, "reasons": "no"},
           "breakdown": {"decode": {"matmul": True}}, "tensor_parallel": "two"}  # fmt: skip
    table = device_table(odd)
    assert (table.steps, table.phases, table.reasons) == ((), (), ())
    assert device_floor(SMALL, odd) is not None
    for nothing in (None, {}, {"ceilings": []}):
        assert device_table(nothing).ceilings is None
        assert device_floor(SMALL, nothing) is None
