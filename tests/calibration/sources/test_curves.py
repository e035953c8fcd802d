"""Published curves by their content: which publication, both halves as one, and what nobody but the user can say."""

import io
import zipfile

import numpy as np
import pytest

from calibration.sources.curves import DYNAMO, SARATHI, SPLITWISE, NeedsWord, read_curves
from calibration.sources.npz import npz_arrays
from calibration.sources.published import CurveError
from calibration.steptime import Chunk, StepShape

SARATHI_HEAD = "batch_num_decode_tokens,batch_num_prefill_tokens,batch_execution_time\n"
SPLITWISE_HEAD = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **{name: np.asarray(array) for name, array in arrays.items()})
    return io.BytesIO(out.getvalue())


def text(value):
    return io.BytesIO(value.encode())


def prefill():
    return npz(prefill_isl=[100, 400], prefill_ttft=[20.0, 50.0])


def decode(**changes):
    arrays = {"x_kv_usage": [0.5], "y_context_length": [100], "z_itl": [7.0], "max_kv_tokens": [1000]}
    return npz(**arrays | changes)


def test_two_halves_of_a_profile_are_one_set() -> None:
    found = read_curves([prefill(), decode()])
    assert (found.form, found.kv_tokens, len(found.samples), len(found.granted)) == (DYNAMO, 1000, 3, 2)
    assert read_curves([prefill()]).kv_tokens is None
    both = npz(
        prefill_isl=[9],
        prefill_ttft=[1.0],
        x_kv_usage=[1],
        y_context_length=[10],
        z_itl=[1],
        max_kv_tokens=[99],
    )
    assert {sample.kind for sample in read_curves([both]).samples} == {"prefill", "decode"}


def test_the_same_shape_in_two_files_is_one_sample_with_both_repeats() -> None:
    (sample,) = read_curves([text(SARATHI_HEAD + "0,64,0.1\n"), text(SARATHI_HEAD + "0,64,0.2\n")]).samples
    assert (sample.shape, sample.seconds) == (StepShape((), (Chunk(64, 0),)), (0.1, 0.2))


def test_sarathi_s_context_is_asked_for_where_there_are_decodes() -> None:
    with pytest.raises(NeedsWord) as caught:
        read_curves([text(SARATHI_HEAD + "4,0,0.05\n")])
    assert caught.value.field == "context_tokens"
    found = read_curves([text(SARATHI_HEAD + "4,0,0.05\n")], context_tokens=1024)
    assert (found.form, found.samples[0].shape.decode_contexts) == (SARATHI, (1024,) * 4)
    assert "1,024 tokens" in found.granted[0]
    assert read_curves([text(SARATHI_HEAD + "0,64,0.05\n")]).granted == ()


def test_splitwise_s_hardware_is_asked_for_where_there_are_several() -> None:
    rows = SPLITWISE_HEAD + "m,a100,512,2,128,285.0,50.0,8\n"
    found = read_curves([text(rows)])
    assert (found.form, found.hardware, found.tensor_parallel, len(found.samples)) == (
        SPLITWISE,
        "a100",
        8,
        2,
    )
    two = rows + "m,h100,512,2,128,1.0,1.0,4\n"
    with pytest.raises(NeedsWord, match="a100, h100"):
        read_curves([text(two)])
    assert read_curves([text(two)], hardware="h100").tensor_parallel == 4
    with pytest.raises(CurveError, match="several values"):
        read_curves([text(rows + "m,a100,512,2,128,1.0,1.0,4\n")])


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ([b"prompt,time\n1,2\n"], "line 1"),
        ([b""], "line 1"),
        ([b"a\xff"], "line 1"),
        ([b"a\nb\x00"], "line 2"),
        ([b"PK\x03\x04 no zip"], "file"),
        ([SARATHI_HEAD.encode() + b"0,64,0.1\n\n0,x,0.1\n"], "line 4"),
        ([SARATHI_HEAD.encode() + b"99999,0,0.1\n"], "line 2"),
        ([SARATHI_HEAD.encode() + b"0,64,0.1\n", b"nothing known\n"], "file 2, line 1"),
    ],
)
def test_what_is_no_curve_says_where(files, place) -> None:
    with pytest.raises(CurveError) as caught:
        read_curves([io.BytesIO(file) for file in files], context_tokens=8)
    assert caught.value.place == place


def test_halves_of_two_publications_are_refused() -> None:
    with pytest.raises(CurveError, match="another form"):
        read_curves([prefill(), text(SARATHI_HEAD + "0,64,0.1\n")])


@pytest.mark.parametrize(
    "changes", [{"x_kv_usage": [1e300], "max_kv_tokens": [1e300]}, {"x_kv_usage": [np.inf]}, {"max_kv_tokens": [0]},
                {"z_itl": np.array(["1"])}, {"x_kv_usage": [1.0], "max_kv_tokens": [1e9]}],
)  # fmt: skip
def test_absurd_profiles_are_refused(changes) -> None:
    with pytest.raises(CurveError):
        read_curves([decode(**changes)])


def test_an_npz_takes_no_more_memory_than_it_has_bytes() -> None:
    """A header may claim a terabyte, and a zip may unpack to more than was sent."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("claims.npy", header.getvalue())
        archive.writestr("swells.npy", b"\0" * 2_000_000)
    for name, words in (("claims", "fewer bytes"), ("swells", "larger than")):
        with pytest.raises(ValueError, match=words):
            npz_arrays(out.getvalue(), [name], 1_000_000)


def test_sequences_of_all_steps_together_are_bounded() -> None:
    rows = "".join(f"16384,{tokens},0.1\n" for tokens in range(1, 400))
    with pytest.raises(CurveError, match="in all steps"):
        read_curves([text(SARATHI_HEAD + rows)], context_tokens=8)
