"""Where to be told, and of what: one form for page and API."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from accounts.models import Project
from calibration import outgoing
from calibration.form_parts import LineField
from calibration.models import Channel
from calibration.notification_models import EVENTS
from calibration.sources import outbound

MOST_CHANNELS = 20


class EventsForm(forms.Form):
    """What a channel is told of, and whether at all."""

    events = forms.MultipleChoiceField(
        choices=list(EVENTS.items()),
        initial=list(EVENTS),
        widget=forms.CheckboxSelectMultiple,
        label="Tell of",
    )
    enabled = forms.BooleanField(required=False, initial=True)


class ChannelForm(EventsForm):
    kind = forms.ChoiceField(choices=Channel.KINDS, initial=Channel.WEBHOOK, label="How")
    target = LineField(
        max_length=2000,
        label="Address",
        help_text="An e-mail address, or the URL that a webhook is posted to.",
    )
    project = forms.ModelChoiceField(
        Project.objects.none(), to_field_name="slug", required=False, empty_label=None,
        help_text="Default: your first one.",
    )  # fmt: skip
    field_order = ["kind", "target", "project", "events", "enabled"]

    def __init__(self, *args: Any, user: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.user = user
        field = self.fields["project"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        field.queryset = Project.objects.visible_to(user).order_by("id")

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        target, kind = data.get("target"), data.get("kind")
        if target and kind:
            try:
                _check(kind, target)
            except ValidationError as error:
                self.add_error("target", error)
        if "project" in data and data["project"] is None:
            data["project"] = Project.objects.visible_to(self.user).order_by("id").first()
            if data["project"] is None:
                self.add_error("project", "You are in no project.")
        if Channel.objects.of(self.user).count() >= MOST_CHANNELS:
            self.add_error(None, f"At most {MOST_CHANNELS} of a person: delete one first.")
        return data

    def save(self, pk: uuid.UUID | None = None) -> Channel:
        """`pk`: of a form (config/once.py); where the channel is there already, it is the answer."""
        data, pk = self.cleaned_data, pk or uuid.uuid4()
        values = {key: data[key] for key in ("project", "kind", "target", "events", "enabled")}
        return Channel.objects.get_or_create(pk=pk, defaults={"owner": self.user, **values})[0]


def _check(kind: str, target: str) -> None:
    if kind == Channel.EMAIL:
        validate_email(target)
        if len(target) > 254:
            raise ValidationError("An e-mail address has at most 254 characters.")
        return
    try:
        outbound.check(target, outgoing.guard())
    except outbound.OutboundError as error:
        raise ValidationError(f"It cannot be reached from here: {error}.") from error
