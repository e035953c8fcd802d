"""Forms of the account pages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib.auth import authenticate, get_user_model
from django.http import HttpRequest
from django.utils import timezone

from accounts.models import ApiToken, Membership


class SignInForm(forms.Form):
    username = forms.CharField(
        max_length=150,
        label="Name",
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True}),
    )
    password = forms.CharField(
        max_length=1024, strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )

    def user(self, request: HttpRequest) -> Any:
        """Who it is, or None with an error that does not tell a wrong name from a wrong password. Django
        hashes the password for unknown names too, so the time does not tell either."""
        user = authenticate(request, **self.cleaned_data)
        if user is None:
            self.add_error(None, "Name and password do not match.")
        return user


class TokenForm(forms.Form):
    LIFETIMES = [("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("never", "never")]

    name = forms.CharField(max_length=80, help_text="What it is for, so that you know which one to revoke.")
    scope = forms.ChoiceField(choices=ApiToken.SCOPES, initial=ApiToken.READ)
    lifetime = forms.ChoiceField(choices=LIFETIMES, initial="90", label="Expires after")

    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["lifetime"]
        return None if days == "never" else timezone.now() + timedelta(days=int(days))


class ProjectForm(forms.Form):
    name = forms.CharField(max_length=80)


class UseProjectForm(forms.Form):
    project = forms.SlugField(max_length=80)


class RoleForm(forms.Form):
    role = forms.ChoiceField(choices=Membership.ROLES, initial=Membership.MEMBER)


class MemberForm(RoleForm):
    username = forms.CharField(max_length=150, label="Name", help_text="The name they sign in with.")
    field_order = ["username", "role"]

    def clean_username(self) -> Any:
        name = self.cleaned_data["username"]
        user = get_user_model()._default_manager.filter(username=name, is_active=True).first()
        if user is None:
            raise forms.ValidationError("Nobody here signs in with this name.")
        return user
