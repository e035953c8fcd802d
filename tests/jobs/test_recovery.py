"""kill -9 at work. The jobs were killed before the other tests of this folder ran (conftest.killed), so that their
time overlaps with the half minute after which a silent worker is taken for dead."""

import pytest

pytestmark = pytest.mark.worker


def test_killed_jobs_are_marked_interrupted_within_a_minute_and_keep_their_samples(killed, beating):
    """By the sweep that beat sends."""
    for job in killed:
        row = beating.wait_for_status(job.pk, "interrupted")
        assert row["finished_s"] - job.at_s < 60
        assert len(row["ordinals"]) >= job.samples
        assert "run it again" in row["error"]


def test_run_again_completes(killed, beating):
    again = beating.call("rerun", pk=killed[1].pk)
    row = beating.wait_for_status(again, "done")
    assert row["ordinals"] == list(range(len(row["ordinals"])))
    assert beating.call("row", pk=killed[1].pk)["status"] == "interrupted", "what happened stays on record"
