import dataclasses
import io
import json

import pytest
from django.db.backends.base.operations import BaseDatabaseOperations as PostgresOperations
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration import document as module
from calibration.architecture import PRESETS
from calibration.capacity import KVCapacity
from calibration.document import CalibrationDocument, DocumentError, read_document, write_document
from calibration.engines import MeasuredEngine
from calibration.experiment.envelope import Envelope
from calibration.facts import Facts
from calibration.models import Calibration
from calibration.steptime import Chunk, StepSample, StepShape, StepTimeModel, features_of, fit
from calibration.transfer import TransferTable


def some_samples():
    shapes = [StepShape((c,) * b) for b in (1, 2, 8) for c in (64, 512)]
    shapes += [StepShape((64,) * b, (Chunk(q, 5, samples=False),)) for b in (0, 8) for q in (16, 200)]
    roles = ["fit"] * (len(shapes) - 1) + ["heldout"]
    return [
        StepSample(s, (0.004 + 1e-5 * s.features[0] / 3, 0.1 / 3), role, 0.25, 1e-4)
        for s, role in zip(shapes, roles, strict=True)
    ]


@pytest.fixture(scope="module")
def whole():
    samples = some_samples()
    return CalibrationDocument(
        PRESETS["demo"], "cpu", Envelope(8, 512, 256), 4096, 7, {"torch": "2.13", "loads": [0.5, 1.25]}, samples,
        fit(samples, bootstrap=3).to_dict(), {"engine": "ridgeline"},
    )  # fmt: skip


def refused(data):
    with pytest.raises(DocumentError) as caught:
        read_document(io.BytesIO(data if isinstance(data, bytes) else json.dumps(data).encode()))
    assert str(caught.value) == f"{caught.value.field}: {caught.value.message}"
    return caught.value.field


def changed(whole, path, value):
    """The file with one value changed, and a checksum that fits it: a forgery, not an accident."""
    outer = json.loads(write_document(whole))
    place = outer["content"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    outer["checksum"] = module._checksum(outer["content"])
    return outer


def test_a_file_read_back_is_equal_and_predicts_the_same(whole, tmp_path):
    path = tmp_path / "calibration.json"
    path.write_bytes(write_document(whole))
    again = read_document(path)
    assert again == whole
    assert write_document(again) == write_document(whole)
    features = features_of(s.shape for s in whole.samples)
    before, after = (StepTimeModel.from_dict(d.model).predict_s(features) for d in (whole, again))
    assert before.tolist() == after.tolist()


def test_a_refused_calibration_has_no_model_and_no_envelope_need_be_known(whole):
    bare = dataclasses.replace(whole, model=None, envelope=None)
    assert read_document(io.BytesIO(write_document(bare))) == bare


def test_what_is_not_finite_is_never_written(whole):
    with pytest.raises(ValueError):
        write_document(dataclasses.replace(whole, environment={"load": float("nan")}))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "file"),
        (b"\xff\xfe{}", "file"),
        (b"[" * 100_000, "file"),
        (b'{"format": NaN}', "file"),
        (b'{"format": 1e999}', "file"),
        (b"[]", "format"),
        ({"format": "other"}, "format"),
        ({"format": "ridgeline-calibration", "version": 2}, "version"),
        ({"format": "ridgeline-calibration", "version": True}, "version"),
        ({"format": "ridgeline-calibration", "version": 1.0}, "version"),
        ({"format": "ridgeline-calibration", "version": 1}, "content"),
    ],
)
def test_what_is_no_calibration_is_refused(data, field):
    assert refused(data) == field


def test_a_changed_or_cut_file_is_noticed(whole):
    data = write_document(whole)
    assert refused(data.replace(b'"kv_tokens": 4096', b'"kv_tokens": 4097')) == "checksum"
    assert refused(data[: len(data) // 2]) == "file"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("device",), "", "device"),
        (("device",), "a\nb", "device"),
        (("device",), None, "device"),
        (("kv_tokens",), 0, "kv_tokens"),
        (("kv_tokens",), True, "kv_tokens"),
        (("kv_tokens",), 1.5, "kv_tokens"),
        (("seed",), -1, "seed"),
        (("seed",), 2**31, "seed"),
        (("device",), "d" * 121, "device"),
        (("samples",), [], "samples"),
        (("samples",), {}, "samples"),
        (("samples", 0), 3, "samples.0"),
        (("samples", 0, "shape", "decode"), [-1], "samples.0.shape"),
        (("samples", 0, "shape", "decode"), [1e9], "samples.0.shape"),
        (("samples", 0, "shape", "decode"), [], "samples.0"),
        (("samples", 0, "shape", "chunks"), [[1, 2]], "samples.0.shape.chunks"),
        (("samples", 0, "shape", "chunks"), [[0, 2, 1]], "samples.0"),
        (("samples", 2, "seconds"), [], "samples.2"),
        (("samples", 2, "seconds"), [0.0], "samples.2.seconds"),
        (("samples", 2, "seconds"), ["1"], "samples.2.seconds"),
        (("samples", 2, "seconds"), [10**300], "samples.2.seconds"),
        (("samples", 1, "role"), "best", "samples.1.role"),
        (("samples", 1, "contended_share"), 2, "samples.1.contended_share"),
        (("samples", 1, "host_gap_s"), None, "samples.1.host_gap_s"),
        (("architecture",), [], "architecture"),
        (("architecture", "layers"), 0, "architecture.layers"),
        (("architecture", "name"), "", "architecture.name"),
        (("architecture", "name"), "  ", "architecture.name"),
        (("architecture", "name"), None, "architecture.name"),
        (("architecture", "name"), "Llama\u202e8-3", "content.architecture.name"),
        (("architecture", "name"), "Llama\xad8B", "architecture.name"),
        (("architecture", "name"), "n" * 201, "architecture.name"),
        (("architecture", "model_type"), "\u200b", "architecture.model_type"),
        (("architecture", "quantization"), "fp8\x85", "content.architecture.quantization"),
        (("architecture", "notes"), ["a note", "of two\nlines"], "architecture.notes.1"),
        (("envelope",), [], "envelope.envelope"),
        (("envelope", "max_batch"), 0, "envelope.max_batch"),
        (("model",), [1], "model"),
        (("model", "parameters", "g"), -1, "model"),
        (("model", "hull", "high"), [10**9] * 7, "model"),
        (("environment",), None, "environment"),
        (("environment", "name"), "a\x00b", "content.environment.name"),
        (("environment", "name"), "\ud800", "content.environment.name"),
        (("environment", "name"), "GPU \u2067dlo", "content.environment.name"),
        (("provenance", "note"), "\x1b[2J", "content.provenance.note"),
        (("provenance", "note"), "x" * 300_000, "provenance"),
        (("kv_tokens",), 1 << 40, "kv_tokens"),
        (
            ("kv_capacity",),
            {"budget_tokens": [1], "working_bytes": [0], "kv_tokens": [1 << 40]},
            "kv_capacity",
        ),
        (("environment", "tensor_parallel"), 7, "environment.tensor_parallel"),
        (("environment", "started_at"), 1_700_000_000, "environment.started_at"),
        (("environment", "started_at"), "yesterday", "environment.started_at"),
        (("environment", "started_at"), "9999-01-01T00:00:00+00:00", "environment.started_at"),
        (("environment", "dtype"), ["bfloat16"], "environment.dtype"),
        (("provenance", "engine"), ["ridgeline"], "provenance.engine"),
        (("provenance", "dtype"), 16, "provenance.dtype"),
    ],
)
def test_a_wrong_value_is_refused_at_its_field_though_the_checksum_fits(
    whole, path, value, field, monkeypatch
):
    surrogates = json.dumps(value) == '"\\ud800"'
    if surrogates:  # such a text has no checksum: any will do
        monkeypatch.setattr(module, "_checksum", lambda content: "0")
    assert refused(changed(whole, path, value)) == field


def test_the_largest_values_fit_the_columns_of_every_database(whole):
    """SQLite takes any length and any integer; Postgres refuses with an error what its column does not hold."""
    integer = PostgresOperations.integer_field_ranges
    for name, most in (("seed", module.MAX_SEED), ("kv_tokens", module.MAX_POOL_TOKENS)):
        assert most <= integer[Calibration._meta.get_field(name).get_internal_type()][1]
    assert Calibration._meta.get_field("device").max_length >= module.MAX_DEVICE
    edge = dataclasses.replace(
        whole, seed=module.MAX_SEED, kv_tokens=module.MAX_POOL_TOKENS, device="d" * module.MAX_DEVICE
    )
    assert read_document(io.BytesIO(write_document(edge))) == edge


def test_nesting_and_size_are_bounded(whole, monkeypatch):
    deep: dict = {}
    for _ in range(40):
        deep = {"in": deep}
    assert refused(changed(whole, ("environment", "deep"), deep)) == "file"
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    assert refused(write_document(whole)) == "file"


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_whatever_is_put_in_a_file_is_read_or_refused(whole, data):
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    anything = st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )
    outer = json.loads(write_document(whole))
    for _ in range(data.draw(st.integers(1, 3))):
        place, key = outer, "content"
        while isinstance(place[key], (dict, list)) and place[key] and data.draw(st.integers(0, 5)):
            place = place[key]
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place[key] = data.draw(anything)
    outer["checksum"] = module._checksum(outer["content"])
    try:
        document = read_document(io.BytesIO(json.dumps(outer).encode()))
    except DocumentError as error:
        assert error.field
        assert error.message
        return
    assert read_document(io.BytesIO(write_document(document))) == document


def test_engine_pools_and_transfers_travel_with_the_file(whole):
    facts = Facts(
        MeasuredEngine("vllm", "0.19.0", "iteration log"),
        KVCapacity((256, 512), (10, 20), (4096, 4000), "read"),
        (TransferTable.link(10.0, 1e-5, 0.1),),
    )
    told = dataclasses.replace(whole, facts=facts)
    assert read_document(io.BytesIO(write_document(told))).facts == facts
    assert refused(changed(told, ["kv_capacity", "kv_tokens", 1], 5000)) == "kv_capacity"
    assert refused(changed(told, ["transfers", 0, "uncertainty"], 200)) == "transfers.0"


def test_pools_and_transfers_were_measured_with_the_ranks_of_the_steps(whole):
    facts = Facts(
        MeasuredEngine("ridgeline"),
        KVCapacity((256, 512), (10, 20), (4096, 4000), "two", ranks=2),
        (TransferTable.measured((2e6,), (1e-3,), label="two", ranks=2), TransferTable.link(10.0, 1e-5, 0.1)),
    )
    two = dataclasses.replace(whole, facts=facts, environment=whole.environment | {"tensor_parallel": 2})
    assert read_document(io.BytesIO(write_document(two))) == two
    assert two.ranks == 2
    assert refused(changed(two, ["kv_capacity", "ranks"], 4)) == "kv_capacity.ranks"
    assert refused(changed(two, ["transfers", 0, "ranks"], 1)) == "transfers.0.ranks"
    assert refused(changed(two, ["environment", "tensor_parallel"], 65)) == "environment.tensor_parallel"
    assert refused(changed(two, ["environment", "tensor_parallel"], "2")) == "environment.tensor_parallel"


def test_a_file_of_before_those_were_kept_is_read(whole):
    outer = json.loads(write_document(whole))
    for field in ("engine", "kv_capacity", "transfers"):
        del outer["content"][field]
    outer["checksum"] = module._checksum(outer["content"])
    facts = read_document(io.BytesIO(json.dumps(outer).encode())).facts
    assert facts == Facts(MeasuredEngine("ridgeline"))


def test_a_model_is_held_against_its_own_samples(whole):
    """Milliseconds beside seconds, a hull wider than what was fitted, a model without its samples: not believed."""
    outer = json.loads(write_document(whole))
    for sample in outer["content"]["samples"]:
        sample["seconds"] = [1000 * value for value in sample["seconds"]]
    outer["checksum"] = module._checksum(outer["content"])
    assert refused(outer) == "model"
    high = whole.model["hull"]["high"]
    assert refused(changed(whole, ["model", "hull", "high"], [high[0] * 2, *high[1:]])) == "model.hull"
    roles = [entry | {"role": "heldout"} for entry in outer["content"]["samples"]]
    assert refused(changed(whole, ["samples"], roles)) == "model"
