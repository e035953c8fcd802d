"""API: who am I, and which projects am I in."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from django.http import HttpRequest
from ninja import Field, Router, Schema

from accounts.models import ApiToken, Membership
from config.errors import answers

router = Router()
Role = Literal["owner", "member", "viewer"]


class MeOut(Schema):
    username: str
    credential: Literal["token", "session"]
    scope: Literal["read", "write"] = Field(
        description="A session may write; each project's role still decides."
    )
    token_expires_at: datetime | None


class ProjectOut(Schema):
    slug: str = Field(description="What `project` means wherever a payload or a query has it.")
    name: str
    role: Role = Field(description="Yours. A viewer may read only.")
    created_at: datetime


@router.get("/me", response=answers({200: MeOut}), operation_id="me")
def me(request: HttpRequest) -> MeOut:
    """Whose token or session this is, and what it may do."""
    token = getattr(request, "auth", None)
    if isinstance(token, ApiToken):
        scope, expires_at = token.scope, token.expires_at
        return MeOut(
            username=token.user.get_username(), credential="token", scope=scope, token_expires_at=expires_at
        )
    return MeOut(
        username=request.user.get_username(), credential="session", scope="write", token_expires_at=None
    )


@router.get("/projects", response=answers({200: list[ProjectOut]}), operation_id="list_projects")
def list_projects(request: HttpRequest) -> list[ProjectOut]:
    """Your projects. What you start without naming a project goes to the first one you may write to."""
    memberships = (
        Membership.objects.filter(user_id=request.user.pk).select_related("project").order_by("project_id")
    )
    return [
        ProjectOut(slug=m.project.slug, name=m.project.name, role=m.role, created_at=m.project.created_at)
        for m in memberships
    ]
