from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from accounts import tokens
from accounts.models import ApiToken

pytestmark = pytest.mark.django_db


@pytest.fixture
def user():
    return get_user_model().objects.create_user("ada")


def test_token_is_kept_as_a_digest_only(user):
    row, clear = tokens.issue(user, "ci", ApiToken.READ, None)
    assert clear not in str(ApiToken.objects.values().get())
    assert tokens.authenticate(clear) == row


@pytest.mark.parametrize("change", ["x", "", "rl_", "rl_zz", "\x00"])
def test_anything_else_is_refused(user, change):
    _, clear = tokens.issue(user, "ci", ApiToken.READ, None)
    assert tokens.authenticate(clear + change if change == "x" else change) is None


def test_expired_revoked_and_inactive_tokens_are_refused(user):
    row, clear = tokens.issue(user, "ci", ApiToken.READ, timezone.now() - timedelta(seconds=1))
    assert tokens.authenticate(clear) is None
    ApiToken.objects.update(expires_at=None, revoked_at=timezone.now())
    assert tokens.authenticate(clear) is None
    ApiToken.objects.update(revoked_at=None)
    assert tokens.authenticate(clear) == row
    user.is_active = False
    user.save()
    assert tokens.authenticate(clear) is None


def test_rotating_the_secret_key_revokes_every_token(user, settings):
    _, clear = tokens.issue(user, "ci", ApiToken.READ, None)
    settings.SECRET_KEY = "another" * 10
    assert tokens.authenticate(clear) is None
