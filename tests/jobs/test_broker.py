"""A broker that is away, and messages that must not be believed."""

import pytest

from tests.jobs.conftest import REQUEST
from tests.ops.services import wait_for

pytestmark = [pytest.mark.worker, pytest.mark.usefixtures("killed")]


def test_a_job_whose_message_could_not_be_sent_is_sent_by_the_sweep(beating):
    pk = beating.call("start", cut_off=True, **REQUEST)
    assert "could not send" in beating.log("driver")
    assert beating.call("row", pk=pk)["status"] == "queued"
    beating.call("age", pk=pk, seconds=60)
    beating.wait_for_status(pk, "running")
    beating.call("cancel", pk=pk)
    beating.wait_for_status(pk, "cancelled", "done")


def test_a_pickled_message_is_refused(beating, tmp_path):
    touched = tmp_path / "touched"
    beating.call("pickled", path=str(touched))
    wait_for(lambda: "ContentDisallowed" in beating.log("default"), "the refusal")
    assert not touched.exists()
    swept = beating.log("default").count("succeeded")
    wait_for(lambda: beating.log("default").count("succeeded") > swept, "the worker to work on")
