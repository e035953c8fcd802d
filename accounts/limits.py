"""Rate limits as token buckets in the database: correct across processes, no cache server needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv6Address, ip_address, ip_network

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from accounts.models import RateBucket


@dataclass(frozen=True, slots=True)
class Limit:
    """``capacity`` actions at once, refilled at ``per_s`` a second."""

    name: str
    capacity: float
    per_s: float


# Per address, and per name whatever the address: guessing is slow from one machine and from many. The second is
# wider, because a stranger who spends it keeps its owner from signing in for a minute at a time.
SIGN_IN = Limit("sign-in", 10, 10 / 600)
SIGN_IN_NAME = Limit("sign-in-name", 20, 20 / 600)
TOKEN_ISSUE = Limit("token", 20, 20 / 3600)
UPLOAD = Limit("upload", 30, 30 / 600)
JOB_START = Limit("job", 30, 30 / 600)
LOOK = Limit("look", 120, 1.0)  # previews, fits and comparisons: seconds of work on a traffic of millions
WHAT_IF = Limit(
    "what-if", 240, 4.0
)  # a dragged slider: tenths of a second each, five times that its neighbours
API_FAILURE = Limit("api-failure", 30, 30 / 600)


class RateLimited(Exception):
    """``retry_after_s`` until one more action is allowed."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"Too many requests; try again in {max(1, round(retry_after_s))} s.")
        self.retry_after_s = retry_after_s


def client_address(request: HttpRequest) -> str:
    """Whose bucket it is: the address the request came from; for IPv6 its /64, which one machine owns whole.

    Behind a proxy (BEHIND_PROXY) that is the last entry of X-Forwarded-For, the one our own proxy wrote.
    """
    address: str = request.META.get("REMOTE_ADDR", "")
    if settings.BEHIND_PROXY:
        address = request.headers.get("X-Forwarded-For", address).rpartition(",")[2].strip()
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
    return str(parsed)


def name_key(name: str) -> str:
    """A bucket's key for a name somebody typed: of fixed length, and not readable from the table."""
    return hashlib.sha256(name.strip().casefold().encode("utf-8", "replace")).hexdigest()[:32]


def prune() -> int:
    """Deletes buckets that have long been full again. Returns how many."""
    full_since = timezone.now() - timedelta(days=1)
    return RateBucket.objects.filter(updated_at__lt=full_since).delete()[0]


def spend(limit: Limit, who: str) -> None:
    """Takes one action from ``who``'s bucket. Raises RateLimited when it is empty."""
    if not settings.RATE_LIMITS_ENABLED:
        return
    now = timezone.now()
    with transaction.atomic():
        bucket, is_new = RateBucket.objects.select_for_update().get_or_create(
            key=f"{limit.name}:{who}"[:120], defaults={"level": limit.capacity, "updated_at": now}
        )
        if is_new:
            prune()
        elapsed_s = max(0.0, (now - bucket.updated_at).total_seconds())
        level = min(limit.capacity, bucket.level + elapsed_s * limit.per_s)
        allowed = level >= 1
        bucket.level, bucket.updated_at = (level - 1 if allowed else level), now
        bucket.save(update_fields=["level", "updated_at"])
    if not allowed:
        raise RateLimited((1 - level) / limit.per_s)
