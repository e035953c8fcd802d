"""The replay table: 8,643 step times of an RTX 4090 and Llama-3.1-8B, composed from published kernel tables."""

from calibration.sources.step_csv import read_step_csv


def test_the_whole_replay_table_is_read(reference_data):
    samples = read_step_csv(reference_data / "replay" / "rtx4090-llama-3.1-8b" / "steps.csv.gz")
    assert len(samples) == 8643
    assert {kind: sum(s.kind == kind for s in samples) for kind in ("decode", "prefill", "mixed")} == {
        "decode": 99, "prefill": 96, "mixed": 8448,
    }  # fmt: skip
    first = samples[0]
    assert (first.shape.decode_contexts, first.seconds) == ((16,), (0.01664246,))
    assert max(s.median_s for s in samples) == 1.34975831
