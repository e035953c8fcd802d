"""What the pages, the API and the commands do with projects and their members."""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction
from django.utils.text import slugify

from accounts.models import Membership, Project


class LastOwner(Exception):
    """A project keeps at least one owner."""

    def __init__(self) -> None:
        super().__init__("A project needs an owner: make somebody else one first.")


def create_project(owner: Any, name: str) -> Project:
    """A new project with ``owner`` as its owner. Its slug is never that of another project."""
    base = slugify(name)[:60] or "project"
    with transaction.atomic():
        taken = Project.objects.filter(slug=base).exists()
        slug = f"{base}-{secrets.token_hex(4)}" if taken else base
        project = Project.objects.create(name=name, slug=slug)
        Membership.objects.create(project=project, user=owner, role=Membership.OWNER)
    return project


def ensure_project(user: Any) -> None:
    """Gives a user who is in no project one of their own: at the first sign-in or, for commands, the first writing."""
    if Membership.objects.filter(user=user).exists():
        return
    with transaction.atomic():
        # Two first requests at once: the second waits for the user's row, and finds the first one's project.
        get_user_model().objects.select_for_update().get(pk=user.pk)
        if not Membership.objects.filter(user=user).exists():
            create_project(user, user.get_username()[:80])


def add_member(project: Project, user: Any, role: str) -> Membership:
    """Adds the user, or gives a member another role. Raises LastOwner."""
    with transaction.atomic():
        membership, made = Membership.objects.get_or_create(
            project=project, user=user, defaults={"role": role}
        )
        if not made:
            change_role(membership, role)
    return membership


def change_role(membership: Membership, role: str) -> None:
    """Raises LastOwner when nobody else owns the project."""
    with transaction.atomic():
        if role != Membership.OWNER:
            _keep_an_owner(membership)
        Membership.objects.filter(pk=membership.pk).update(role=role)


def remove_member(membership: Membership) -> None:
    """Raises LastOwner when nobody else owns the project. What the member made stays in the project."""
    with transaction.atomic():
        _keep_an_owner(membership)
        membership.delete()


def _keep_an_owner(leaving: Membership) -> None:
    # Locks every owner's row, so that two owners who leave at once do not both find the other still there.
    owners = Membership.objects.filter(project=leaving.project, role=Membership.OWNER)
    ids = list(owners.select_for_update().values_list("pk", flat=True))
    if ids == [leaving.pk]:
        raise LastOwner
