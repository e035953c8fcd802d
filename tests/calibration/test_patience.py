"""Writes of a running job outlast a database that is away for a moment."""

import pytest
from django.db import OperationalError, connection

from calibration import patience
from calibration.patience import patiently

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(patience.time, "sleep", lambda _: None)


def failing(times):
    left = [times]

    def action():
        if left[0]:
            left[0] -= 1
            raise OperationalError("server closed the connection")
        return "written"

    return action


def test_a_database_that_comes_back_is_written_to():
    assert patiently(failing(3)) == "written"


def test_patience_ends():
    with pytest.raises(OperationalError):
        patiently(failing(10**9), patience_s=0.0)


def test_inside_a_transaction_nothing_is_repeated():
    from django.db import transaction

    with pytest.raises(OperationalError), transaction.atomic():
        assert connection.in_atomic_block
        patiently(failing(1))


def test_other_errors_are_not_swallowed():
    with pytest.raises(KeyError):
        patiently(lambda: {}["x"])
