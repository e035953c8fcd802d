"""API: who am I, and which projects am I in."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

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
def me(request: HttpRequest) -> dict[str, Any]:
    """Whose token or session this is, and what it may do."""
    token = getattr(request, "auth", None)
    who = {"username": request.user.get_username()}
    if isinstance(token, ApiToken):
        return {**who, "credential": "token", "scope": token.scope, "token_expires_at": token.expires_at}
    return {**who, "credential": "session", "scope": "write", "token_expires_at": None}


@router.get("/projects", response=answers({200: list[ProjectOut]}), operation_id="list_projects")
def list_projects(request: HttpRequest) -> list[dict[str, Any]]:
    """Your projects. What you start without naming a project goes to the first one you may write to."""
    user: Any = request.user
    memberships = Membership.objects.filter(user=user).select_related("project").order_by("project_id")
    return [
        {"slug": m.project.slug, "name": m.project.name, "role": m.role, "created_at": m.project.created_at}
        for m in memberships
    ]
