from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import RequestFactory
from django.utils import timezone

from accounts import limits
from accounts.models import RateBucket

pytestmark = pytest.mark.django_db
LIMIT = limits.Limit("test", 3, 0.5)


@pytest.fixture(autouse=True)
def enabled(settings):
    settings.RATE_LIMITS_ENABLED = True


def age(seconds):
    bucket = RateBucket.objects.get()
    RateBucket.objects.update(updated_at=bucket.updated_at - timedelta(seconds=seconds))


def test_a_bucket_empties_refills_and_says_how_long_it_takes(settings):
    for _ in range(3):
        limits.spend(LIMIT, "ada")
    with pytest.raises(limits.RateLimited) as refused:
        limits.spend(LIMIT, "ada")
    assert 1.5 < refused.value.retry_after_s <= 2
    limits.spend(LIMIT, "bob")
    RateBucket.objects.filter(key="test:bob").delete()
    age(2)
    limits.spend(LIMIT, "ada")
    with pytest.raises(limits.RateLimited):
        limits.spend(LIMIT, "ada")


def test_a_bucket_never_holds_more_than_its_capacity():
    limits.spend(LIMIT, "ada")
    age(10_000)
    for _ in range(3):
        limits.spend(LIMIT, "ada")
    with pytest.raises(limits.RateLimited):
        limits.spend(LIMIT, "ada")


def test_the_table_does_not_grow_with_every_name_ever_tried():
    limits.spend(LIMIT, "ada")
    RateBucket.objects.update(updated_at=timezone.now() - timedelta(days=2))
    limits.spend(LIMIT, "bob")
    assert RateBucket.objects.get().key == "test:bob"


@pytest.mark.parametrize(
    ("behind_proxy", "address", "forwarded", "key"),
    [
        (False, "203.0.113.9", "198.51.100.1", "203.0.113.9"),
        (True, "10.0.0.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        (True, "10.0.0.1", "rubbish", "unknown"),
        (False, "2001:db8:1:2:aaaa::1", "", "2001:db8:1:2::/64"),
        (False, "::ffff:203.0.113.9", "", "203.0.113.9"),
        (False, "", "", "unknown"),
    ],
)
def test_whose_bucket_it_is(settings, behind_proxy, address, forwarded, key):
    settings.BEHIND_PROXY = behind_proxy
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    request = RequestFactory().get("/", REMOTE_ADDR=address, headers=headers)
    assert limits.client_address(request) == key
