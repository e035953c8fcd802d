"""Projects, their members, API tokens and rate-limit buckets."""

from __future__ import annotations

from typing import Any, Self

from django.conf import settings
from django.db import models
from django.utils import timezone


class ProjectQuerySet(models.QuerySet["Project"]):
    def visible_to(self, user: Any) -> Self:
        return self.filter(memberships__user_id=user.pk) if user.pk else self.none()

    def writable_by(self, user: Any) -> Self:
        roles = [Membership.OWNER, Membership.MEMBER]
        return (
            self.filter(memberships__user_id=user.pk, memberships__role__in=roles) if user.pk else self.none()
        )


class Project(models.Model):
    """A shared workbench: its members see and use each other's calibrations, traffic and plans."""

    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=80, unique=True)
    created_at = models.DateTimeField(default=timezone.now)

    objects = ProjectQuerySet.as_manager()

    class Meta:
        ordering = ["name", "id"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    OWNER, MEMBER, VIEWER = "owner", "member", "viewer"
    ROLES = [(OWNER, "owner"), (MEMBER, "member"), (VIEWER, "viewer")]

    project = models.ForeignKey(Project, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=ROLES, default=MEMBER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="one_membership_each")]

    def __str__(self) -> str:
        return f"{self.user} in {self.project} ({self.role})"


class ApiToken(models.Model):
    """An API token. Only a digest is kept (accounts/tokens.py); the token itself is shown once."""

    READ, WRITE = "read", "write"
    SCOPES = [(READ, "read"), (WRITE, "read and write")]

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64)
    scope = models.CharField(max_length=5, choices=SCOPES, default=READ)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

    @property
    def is_usable(self) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())


class RateBucket(models.Model):
    """A token bucket (accounts/limits.py): ``level`` tokens were left at ``updated_at``."""

    key = models.CharField(max_length=120, unique=True)
    level = models.FloatField()
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.key
