"""Single-user mode: one local user with one project, made on first use."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction

from accounts.models import Membership, Project

USERNAME, SLUG = "local", "local"


def local_user() -> User:
    """The one user of single-user mode. It has no usable password: nobody can sign in as it elsewhere."""
    users = get_user_model()
    user = users.objects.filter(username=USERNAME).first()
    if user is None:
        with transaction.atomic():
            user, made = users.objects.get_or_create(
                username=USERNAME, defaults={"is_staff": True, "is_superuser": True}
            )
            if made:
                user.set_unusable_password()
                user.save()
                project, _ = Project.objects.get_or_create(slug=SLUG, defaults={"name": "Local"})
                Membership.objects.get_or_create(project=project, user=user, role=Membership.OWNER)
    return user
