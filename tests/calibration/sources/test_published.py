"""Published curves: what their files hold becomes samples, what they do not hold is an error with its place."""

import io

import numpy as np
import pytest

from calibration.sources.published import (
    CurveError,
    read_dynamo_decode,
    read_dynamo_prefill,
    read_sarathi,
    read_splitwise,
)
from calibration.steptime import Chunk, StepShape


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return io.BytesIO(out.getvalue())


def text(value):
    return io.BytesIO(value.encode())


def test_dynamo() -> None:
    (one, two) = read_dynamo_prefill(
        npz(prefill_isl=np.array([100, 400]), prefill_ttft=np.array([20.0, 50.0]))
    )
    assert (one.shape, one.seconds) == (StepShape((), (Chunk(100, 0),)), (0.02,))
    assert two.shape.chunks[0].query_tokens == 400
    (gap,) = read_dynamo_decode(
        npz(x_kv_usage=[0.5], y_context_length=[100], z_itl=[7.0], max_kv_tokens=np.array([1000]))
    )
    assert gap.shape.decode_contexts == (100,) * 5
    assert gap.seconds == (0.007,)


@pytest.mark.parametrize(
    ("file", "place"),
    [
        (io.BytesIO(b"no zip"), "file"),
        (npz(prefill_isl=np.array([1])), "prefill_ttft"),
        (npz(prefill_isl=np.array([1, 2]), prefill_ttft=np.array([1.0])), "prefill_isl"),
        (npz(prefill_isl=np.array([1.5]), prefill_ttft=np.array([1.0])), "prefill_isl[0]"),
        (npz(prefill_isl=np.array([1]), prefill_ttft=np.array([np.nan])), "file"),
        (npz(prefill_isl=np.array([1]), prefill_ttft=np.array([0.0])), "prefill_isl[0]"),
        (npz(prefill_isl=np.array(["x"], dtype=object), prefill_ttft=np.array([1.0])), "file"),
    ],
)
def test_npz_files_that_are_none(file, place) -> None:
    with pytest.raises(CurveError) as caught:
        read_dynamo_prefill(file)
    assert caught.value.place == place


HEAD = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time\n"


def test_splitwise_has_two_phases_in_a_row() -> None:
    rows = HEAD + "m,a100,512,2,128,285.0,50.0\nm,a100,512,2,128,287.0,51.0\nm,h100,512,2,128,1.0,1.0\n"
    prefill, decode = read_splitwise(text(rows), hardware="a100")
    assert (prefill.shape.chunks, prefill.seconds) == ((Chunk(512, 0),) * 2, (0.285, 0.287))
    assert (decode.shape.decode_contexts, decode.seconds) == ((576, 576), (0.05, 0.051))
    with pytest.raises(CurveError, match="no row has 'tpu'"):
        read_splitwise(text(rows), hardware="tpu")


@pytest.mark.parametrize(
    ("row", "words"),
    [("m,a100,512,2,128,x,50.0", "line 2: prompt_time must be a number"), ("m,a100,5.5,2,128,1,1", "line 2: must be a"),
     ("m,a100,512,2,128,0,1", "line 2: takes 0 s"), ("m,a100,512,2,128,inf,1", "line 2: prompt_time must be finite")],
)  # fmt: skip
def test_rows_that_are_none_name_their_line(row, words) -> None:
    with pytest.raises(CurveError, match=words):
        read_splitwise(text(HEAD + row + "\n"), hardware="a100")


def test_sarathi_takes_its_context_from_the_caller() -> None:
    head = "batch_num_decode_tokens,batch_num_prefill_tokens,batch_execution_time\n"
    decode, mixed = read_sarathi(text(head + "4,0,0.05\n2,1021,0.218\n"), context_tokens=1024)
    assert (decode.shape.decode_contexts, decode.seconds) == ((1024,) * 4, (0.05,))
    assert mixed.shape == StepShape((1024,) * 2, (Chunk(1021, 0),))
    with pytest.raises(CurveError, match="line 2"):
        read_sarathi(text(head + "0,0,0.05\n"), context_tokens=1024)
