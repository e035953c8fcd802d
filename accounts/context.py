"""What every page's template may use."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from accounts.access import PROJECT_KEY
from accounts.models import Project


def _version() -> str:
    """Of the installed package; in a checkout, what pyproject.toml says."""
    try:
        return version("ridgeline")
    except PackageNotFoundError:
        lines = (settings.BASE_DIR / "pyproject.toml").read_text().splitlines()
        return next(line.split('"')[1] for line in lines if line.startswith("version"))


VERSION = _version()


def site(request: HttpRequest) -> dict[str, Any]:
    """Lazy: a page that shows no projects asks the database nothing."""
    user = getattr(request, "user", None)

    def projects() -> list[Project]:
        return list(Project.objects.visible_to(user)) if user is not None and user.pk else []

    lazy_projects = SimpleLazyObject(projects)
    return {
        "single_user": settings.SINGLE_USER,
        "version": VERSION,
        "projects": lazy_projects,
        "chosen_slug": SimpleLazyObject(lambda: request.session.get(PROJECT_KEY, "")),
    }
