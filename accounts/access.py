"""Who may see what. Every object belongs to a project; a user sees the projects they are a member of.

Querysets of owned objects start with ``visible_to(user)``; whatever is outside is a 404, never a 403, so that
nobody learns which ids exist. Changing needs ``may_write``; deleting a project or its members needs an owner.
"""

from __future__ import annotations

import uuid
from typing import Any, Self, TypeVar

from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404

from accounts.models import Membership, Project
from accounts.services import ensure_project

OwnedModel = TypeVar("OwnedModel", bound=models.Model)


class OwnedQuerySet(models.QuerySet[OwnedModel]):
    """For models with a ``project`` foreign key."""

    def visible_to(self, user: Any) -> Self:
        return self.filter(project__in=Project.objects.visible_to(user))

    def writable_by(self, user: Any) -> Self:
        return self.filter(project__in=Project.objects.writable_by(user))


def current_project(user: Any, slug: str | None = None) -> Project:
    """The project named ``slug`` that the user may write to, or their first one, which who is in none is given here.

    Raises Http404 for a project that is not theirs, or where they may only look at all of theirs.
    """
    ensure_project(user)
    projects = Project.objects.writable_by(user).order_by("id")
    project = projects.filter(slug=slug).first() if slug else projects.first()
    if project is None:
        raise Http404("No such project")
    return project


PROJECT_KEY = "project"  # in the session: slug of the project chosen in the top bar


def chosen_project(request: HttpRequest) -> Project:
    """Where what this visitor makes is put: the project chosen in the top bar while they may write to it,
    else their first. Raises PermissionDenied when they may only look."""
    slug = request.session.get(PROJECT_KEY)
    writable = Project.objects.writable_by(request.user).order_by("id")
    project = (writable.filter(slug=slug).first() if slug else None) or writable.first()
    if project is None:
        raise PermissionDenied("You may look at this project, but not start anything in it.")
    return project


def get_visible(rows: OwnedQuerySet[OwnedModel], user: Any, pk: uuid.UUID) -> OwnedModel:
    """The object, or Http404 for whoever may not see it."""
    return get_object_or_404(rows.visible_to(user), pk=pk)


def get_writable(rows: OwnedQuerySet[OwnedModel], user: Any, pk: uuid.UUID) -> OwnedModel:
    """The object, for changing it: Http404 for outsiders, PermissionDenied for those who may only look."""
    found = get_visible(rows, user, pk)
    if not may_write(user, found.project):  # type: ignore[attr-defined]
        raise PermissionDenied("You may look at this project, but not change it.")
    return found


def may_write(user: Any, project: Project) -> bool:
    return Membership.objects.filter(
        user_id=user.pk, project=project, role__in=[Membership.OWNER, Membership.MEMBER]
    ).exists()
