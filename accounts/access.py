"""Who may see what. Every object belongs to a project; a user sees the projects they are a member of.

Querysets of owned objects start with ``visible_to(user)``; whatever is outside is a 404, never a 403, so that
nobody learns which ids exist. Changing needs ``may_write``; deleting a project or its members needs an owner.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

from django.db import models
from django.http import Http404

from accounts.models import Membership, Project

OwnedModel = TypeVar("OwnedModel", bound=models.Model)


class OwnedQuerySet(models.QuerySet[OwnedModel]):
    """For models with a ``project`` foreign key."""

    def visible_to(self, user: Any) -> Self:
        return self.filter(project__in=Project.objects.visible_to(user))

    def writable_by(self, user: Any) -> Self:
        return self.filter(project__in=Project.objects.writable_by(user))


def current_project(user: Any, slug: str | None = None) -> Project:
    """The project named ``slug`` that the user may write to, or their first one.

    Raises Http404 for a project that is not theirs.
    """
    projects = Project.objects.writable_by(user).order_by("id")
    project = projects.filter(slug=slug).first() if slug else projects.first()
    if project is None:
        raise Http404("No such project")
    return project


def may_write(user: Any, project: Project) -> bool:
    return Membership.objects.filter(
        user_id=user.pk, project=project, role__in=[Membership.OWNER, Membership.MEMBER]
    ).exists()
