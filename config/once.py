"""A form that is sent twice makes one thing: a double click, or a browser that sends again what it sent.

Each rendering of a page masks the CSRF token of its forms anew, so a form that comes with the same token and the same
content is the same form sent again. What it makes has an id that follows from both, and the second of two finds the
row of the first, or is refused by the database's key and then finds it.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest

TOKEN = "csrfmiddlewaretoken"  # noqa: S105  # the name of a field
_SPACE = uuid.UUID("5d0a1c5e-6f0e-4b8f-9a53-0f6d6a3a6a10")


AGAIN = "This form was sent before: this is what it made then. Open the form anew to make another."


def say_if_again(request: HttpRequest, rows: QuerySet[Any], kind: str) -> uuid.UUID:
    """`row_id`; whoever sends the form again learns that nothing new was made. `rows`: those of the kind."""
    pk = row_id(request, kind)
    if rows.filter(pk=pk).exists():
        messages.info(request, AGAIN)
    return pk


def row_id(request: HttpRequest, kind: str) -> uuid.UUID:
    """Of the row of this kind that this form makes for this user; any id where the form has no token."""
    token = request.POST.get(TOKEN)
    if not token:
        return uuid.uuid4()
    digest = hashlib.sha256(f"{kind}\n{request.user.pk}\n{token}\n".encode())
    for name, values in sorted(request.POST.lists()):
        if name != TOKEN:
            digest.update(repr((name, values)).encode())
    for name in sorted(request.FILES):
        for file in request.FILES.getlist(name):
            digest.update(repr((name, file.name, file.size)).encode())
            _add(digest, file)
    return uuid.uuid5(_SPACE, digest.hexdigest())


def _add(digest: Any, file: Any) -> None:
    file.seek(0)
    for chunk in file.chunks(1 << 20):
        digest.update(chunk)
    file.seek(0)
