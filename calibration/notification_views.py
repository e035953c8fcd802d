"""Pages of notifications: one's own channels, what was told on each, its secret once."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounts import limits
from calibration import notifications
from calibration.models import Channel
from calibration.notification_forms import ChannelForm, EventsForm
from calibration.notification_models import new_nonce
from config import once


@never_cache
@require_http_methods(["GET", "POST"])
def channel_list(request: HttpRequest) -> HttpResponse:
    """A new webhook's secret is shown in the answer to the POST and nowhere else."""
    form = ChannelForm(request.POST if request.method == "POST" else None, user=request.user)
    context: dict[str, Any] = {}
    if request.method == "POST":
        limits.spend(limits.TOKEN_ISSUE, str(request.user.pk))
        if form.is_valid():
            made = form.save(once.say_if_again(request, Channel.objects.all(), "channel"))
            context["made"] = made
            if made.kind == Channel.WEBHOOK:
                context["secret"] = notifications.secret_of(made)
            form = ChannelForm(user=request.user)
    context |= {
        "channels": Channel.objects.of(request.user).select_related("project"), "form": form,
        "mail_server": settings.EMAIL_HOST,
    }  # fmt: skip
    return render(request, "calibration/channels.html", context, status=422 if form.errors else 200)


def _own(request: HttpRequest, pk: uuid.UUID) -> Channel:
    return get_object_or_404(Channel.objects.of(request.user).select_related("project"), pk=pk)


@never_cache
@require_http_methods(["GET", "POST"])
def channel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = _own(request, pk)
    form = EventsForm(request.POST or None, initial={"events": row.events, "enabled": row.enabled})
    if request.method == "POST" and form.is_valid():
        Channel.objects.filter(pk=row.pk).update(**form.cleaned_data)
        messages.success(request, "Kept.")
        return redirect("notifications:channel", pk)
    return _page(request, row, form, status=422 if form.errors else 200)


def _page(
    request: HttpRequest, row: Channel, form: EventsForm, status: int = 200, **more: Any
) -> HttpResponse:
    page = Paginator(row.deliveries.all(), 25).get_page(request.GET.get("page"))
    context = {"channel": row, "page": page, "form": form, **more}
    return render(request, "calibration/channel.html", context, status=status)


@require_POST
def delete(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    _own(request, pk).delete()
    messages.success(request, "It is deleted, with its history.")
    return redirect("notifications:list")


@never_cache
@require_POST
def rotate(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """A new secret, shown in this answer and nowhere else; the old one signs nothing from now on."""
    row = _own(request, pk)
    if row.kind != Channel.WEBHOOK:
        messages.warning(request, "Only webhooks are signed.")
        return redirect("notifications:channel", pk)
    limits.spend(limits.TOKEN_ISSUE, str(request.user.pk))
    row.nonce = new_nonce()
    row.save(update_fields=["nonce"])
    form = EventsForm(initial={"events": row.events, "enabled": row.enabled})
    return _page(request, row, form, secret=notifications.secret_of(row))


@require_POST
def test(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    row = _own(request, pk)
    limits.spend(limits.TOKEN_ISSUE, str(request.user.pk))
    notifications.try_out(row)
    messages.success(request, "A test is on its way: it leaves within ten seconds.")
    return redirect("notifications:channel", pk)
