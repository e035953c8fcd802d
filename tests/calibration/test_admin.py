"""The administration deletes no calibration whose job would go on writing."""

import pytest
from django.urls import reverse

from calibration.models import Calibration

pytestmark = pytest.mark.django_db


def test_what_is_being_measured_is_not_deleted(published, admin_client, settings):
    settings.SINGLE_USER = False
    url = reverse("admin:calibration_calibration_delete", args=[published.pk])
    Calibration.objects.filter(pk=published.pk).update(status=Calibration.RUNNING)
    assert admin_client.post(url, {"post": "yes"}).status_code == 403
    asked = {"action": "delete_selected", "_selected_action": str(published.pk), "post": "yes"}
    admin_client.post(reverse("admin:calibration_calibration_changelist"), asked)
    assert Calibration.objects.filter(pk=published.pk).exists()
    Calibration.objects.filter(pk=published.pk).update(status=Calibration.DONE)
    assert admin_client.post(url, {"post": "yes"}).status_code == 302
    assert not Calibration.objects.exists()
