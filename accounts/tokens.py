"""API tokens: ``rl_<prefix>_<secret>``. The database holds an HMAC digest of the whole, so a leaked database
gives no usable token, and the secret key's rotation revokes all of them."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.utils import timezone

from accounts.models import ApiToken


def digest(token: str) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), token.encode(), sha256).hexdigest()


def issue(user: Any, name: str, scope: str, expires_at: datetime | None) -> tuple[ApiToken, str]:
    """Returns the row and the token in clear, which is not kept anywhere."""
    prefix = secrets.token_hex(4)
    clear = f"rl_{prefix}_{secrets.token_urlsafe(32)}"
    row = ApiToken.objects.create(
        user=user, name=name, scope=scope, expires_at=expires_at, prefix=prefix, digest=digest(clear)
    )
    return row, clear


def authenticate(clear: str) -> ApiToken | None:
    """The usable token behind ``clear``, or None. Compares digests in constant time."""
    parts = clear.split("_", 2)
    if len(parts) != 3 or parts[0] != "rl" or len(clear) > 200:
        return None
    row = ApiToken.objects.select_related("user").filter(prefix=parts[1][:12]).first()
    if row is None or not hmac.compare_digest(row.digest, digest(clear)):
        return None
    if not row.is_usable or not row.user.is_active:
        return None
    now = timezone.now()
    if row.last_used_at is None or now - row.last_used_at > timedelta(minutes=1):
        ApiToken.objects.filter(pk=row.pk).update(last_used_at=now)
    return row
