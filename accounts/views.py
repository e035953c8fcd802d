"""Account pages: sign in and out, API tokens, projects and their members."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth import login, logout, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import PasswordChangeForm
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render, resolve_url
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import limits, services, tokens
from accounts.access import PROJECT_KEY
from accounts.forms import MemberForm, ProjectForm, RoleForm, SignInForm, TokenForm, UseProjectForm
from accounts.models import ApiToken, Membership, Project

# Signing in and out ------------------------------------------------------------------------------------------


@never_cache
@login_not_required
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    if request.user.is_authenticated:
        return redirect(_next(request))
    form = SignInForm(request.POST or None)
    status = 200
    if request.method == "POST":
        try:
            limits.spend(limits.SIGN_IN, limits.client_address(request))
            limits.spend(limits.SIGN_IN_NAME, limits.name_key(request.POST.get("username", "")))
        except limits.RateLimited as limited:
            return _limited(request, "accounts/sign_in.html", {"form": SignInForm()}, limited)
        user = form.user(request) if form.is_valid() else None
        if user is not None:
            login(request, user)
            services.ensure_project(user)
            return redirect(_next(request))
        status = 422
    return render(request, "accounts/sign_in.html", {"form": form, "next": _next(request)}, status=status)


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("accounts:sign_in")


@never_cache
@sensitive_post_parameters("old_password", "new_password1", "new_password2")
@require_http_methods(["GET", "POST"])
def change_password(request: HttpRequest) -> HttpResponse:
    """Signs every other session of theirs out. The local user of single-user mode has none to change."""
    user = _me(request)
    if not user.has_usable_password():
        raise Http404("No password to change")
    form = PasswordChangeForm(user, request.POST if request.method == "POST" else None)
    if request.method == "POST":
        limits.spend(limits.SIGN_IN_NAME, limits.name_key(user.get_username()))
        if form.is_valid():
            update_session_auth_hash(request, form.save())
            messages.success(request, "Your password is changed.")
            return redirect("accounts:tokens")
    return render(request, "accounts/password.html", {"form": form}, status=422 if form.errors else 200)


def _next(request: HttpRequest) -> str:
    """Where the user wanted to go, if that is a page of ours."""
    target = request.POST.get("next") or request.GET.get("next") or ""
    ours = url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure())
    return target if ours else resolve_url("home")


def _limited(
    request: HttpRequest, template: str, context: dict[str, Any], limited: limits.RateLimited
) -> HttpResponse:
    response = render(
        request, template, {**context, "limited": str(limited), "next": _next(request)}, status=429
    )
    response.headers["Retry-After"] = str(max(1, math.ceil(limited.retry_after_s)))
    return response


@login_not_required
def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """The admin's own form knows no rate limit: there is one door."""
    if request.user.is_authenticated:
        raise PermissionDenied("This part is for staff.")
    return redirect(f"{resolve_url('accounts:sign_in')}?{urlencode({'next': _next(request)})}")


def _me(request: HttpRequest) -> Any:
    """The user: the login middleware lets nobody else this far."""
    return request.user


# API tokens --------------------------------------------------------------------------------------------------


@never_cache
@require_http_methods(["GET", "POST"])
def token_list(request: HttpRequest) -> HttpResponse:
    """A new token is shown in the answer to the POST and nowhere else: not in a session, not in a log."""
    form = TokenForm(request.POST if request.method == "POST" else None)
    context: dict[str, Any] = {"tokens": ApiToken.objects.filter(user=_me(request), revoked_at=None)}
    if request.method == "POST" and form.is_valid():
        try:
            limits.spend(limits.TOKEN_ISSUE, str(request.user.pk))
        except limits.RateLimited as limited:
            return _limited(request, "accounts/tokens.html", {**context, "form": form}, limited)
        data = form.cleaned_data
        _, context["clear"] = tokens.issue(request.user, data["name"], data["scope"], form.expires_at())
        form = TokenForm()
    status = 422 if form.errors else 200
    return render(request, "accounts/tokens.html", {**context, "form": form}, status=status)


@require_POST
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(ApiToken, pk=pk, user=_me(request))
    if token.revoked_at is None:
        ApiToken.objects.filter(pk=token.pk).update(revoked_at=timezone.now())
    messages.success(request, f"Token {token.prefix}… is revoked.")
    return redirect("accounts:tokens")


# Projects ----------------------------------------------------------------------------------------------------


@require_POST
def use_project(request: HttpRequest) -> HttpResponse:
    """Chooses where what one makes is put (accounts.access.chosen_project)."""
    form = UseProjectForm(request.POST)
    if not form.is_valid():
        raise Http404("No such project")
    request.session[PROJECT_KEY] = _visible(request, form.cleaned_data["project"]).slug
    return redirect(_next(request))


def _visible(request: HttpRequest, slug: str) -> Project:
    return get_object_or_404(Project.objects.visible_to(request.user), slug=slug)


def _owned(request: HttpRequest, slug: str) -> Project:
    """404 for outsiders, 403 for members and viewers."""
    found = _visible(request, slug)
    if not found.memberships.filter(user=_me(request), role=Membership.OWNER).exists():
        raise PermissionDenied("Only an owner of the project may do this.")
    return found


def _project_page(request: HttpRequest, found: Project, form: MemberForm, status: int = 200) -> HttpResponse:
    memberships = found.memberships.select_related("user").order_by("user__username")
    mine = next((m for m in memberships if m.user_id == request.user.pk), None)
    context = {
        "project": found, "memberships": memberships, "mine": mine, "roles": Membership.ROLES, "form": form,
        "is_owner": mine is not None and mine.role == Membership.OWNER,
    }  # fmt: skip
    return render(request, "accounts/project.html", context, status=status)


@require_http_methods(["GET", "POST"])
def project_list(request: HttpRequest) -> HttpResponse:
    form = ProjectForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        project = services.create_project(request.user, form.cleaned_data["name"])
        messages.success(request, f"Project {project.name} is yours.")
        return redirect("accounts:project", project.slug)
    memberships = Membership.objects.filter(user=_me(request)).select_related("project")
    context = {"form": form, "memberships": memberships.order_by("project__name")}
    return render(request, "accounts/projects.html", context, status=422 if form.errors else 200)


@require_GET
def project(request: HttpRequest, slug: str) -> HttpResponse:
    return _project_page(request, _visible(request, slug), MemberForm())


@require_POST
def member_add(request: HttpRequest, slug: str) -> HttpResponse:
    found = _owned(request, slug)
    form = MemberForm(request.POST)
    if not form.is_valid():
        return _project_page(request, found, form, status=422)
    try:
        services.add_member(found, form.cleaned_data["username"], form.cleaned_data["role"])
    except services.LastOwner as refusal:
        form.add_error("role", str(refusal))
        return _project_page(request, found, form, status=422)
    return redirect("accounts:project", slug)


@require_POST
def member_role(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    membership = get_object_or_404(Membership, pk=pk, project=_owned(request, slug))
    form = RoleForm(request.POST)
    try:
        if form.is_valid():
            services.change_role(membership, form.cleaned_data["role"])
        else:
            messages.error(request, "Choose owner, member or viewer.")
    except services.LastOwner as refusal:
        messages.error(request, str(refusal))
    return redirect("accounts:project", slug)


@require_POST
def member_remove(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """An owner removes anybody; everybody else may leave."""
    found = _visible(request, slug)
    membership = get_object_or_404(Membership, pk=pk, project=found)
    leaving = membership.user_id == request.user.pk
    if not leaving:
        _owned(request, slug)
    try:
        services.remove_member(membership)
    except services.LastOwner as refusal:
        messages.error(request, str(refusal))
        return redirect("accounts:project", slug)
    return redirect("accounts:projects") if leaving else redirect("accounts:project", slug)
