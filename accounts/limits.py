"""Rate limits as token buckets in the database: correct across processes, no cache server needed."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.models import RateBucket


@dataclass(frozen=True, slots=True)
class Limit:
    """``capacity`` actions at once, refilled at ``per_s`` a second."""

    name: str
    capacity: float
    per_s: float


SIGN_IN = Limit("sign-in", 10, 10 / 600)
TOKEN_ISSUE = Limit("token", 20, 20 / 3600)
UPLOAD = Limit("upload", 30, 30 / 600)
JOB_START = Limit("job", 30, 30 / 600)
API_FAILURE = Limit("api-failure", 30, 30 / 600)


class RateLimited(Exception):
    """``retry_after_s`` until one more action is allowed."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"Too many requests; try again in {max(1, round(retry_after_s))} s.")
        self.retry_after_s = retry_after_s


def spend(limit: Limit, who: str) -> None:
    """Takes one action from ``who``'s bucket. Raises RateLimited when it is empty."""
    if not settings.RATE_LIMITS_ENABLED:
        return
    now = timezone.now()
    with transaction.atomic():
        bucket, _ = RateBucket.objects.select_for_update().get_or_create(
            key=f"{limit.name}:{who}"[:120], defaults={"level": limit.capacity, "updated_at": now}
        )
        elapsed_s = max(0.0, (now - bucket.updated_at).total_seconds())
        level = min(limit.capacity, bucket.level + elapsed_s * limit.per_s)
        allowed = level >= 1
        bucket.level, bucket.updated_at = (level - 1 if allowed else level), now
        bucket.save(update_fields=["level", "updated_at"])
    if not allowed:
        raise RateLimited((1 - level) / limit.per_s)
