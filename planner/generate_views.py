"""The page of a model: how requests arrive, how long they are, whether they belong to sessions; what comes out."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_POST

from accounts import limits
from accounts.access import chosen_project, get_visible
from accounts.models import Project
from planner.described_inputs import Input, inputs
from planner.fit_forms import FitForm
from planner.generate_forms import GenerateForm
from planner.models import TrafficJob, TrafficSet
from planner.traffic import PRESETS, statistics
from planner.traffic.described import from_texts, texts_of
from planner.traffic.fitting import FIT_PARTS
from planner.traffic.generating import PARTS, Sessions, SyntheticModel
from planner.traffic_job_views import made_or_started

MOST_CHOICES = 200
TITLES = {"arrivals": "When requests arrive", "lengths": "How long they are"}
Parts = dict[str, tuple[str, dict[str, str]]]
"""Per part of the model: its kind, and what its inputs hold. Sessions: "yes" or ""."""


@dataclass(frozen=True, slots=True)
class Part:
    key: str
    title: str
    kind: str
    kinds: list[tuple[str, str]]
    about: str
    inputs: list[Input]


def parts_of_model(model: SyntheticModel) -> Parts:
    said = model.to_dict()
    found: Parts = {part: (said[part]["kind"], texts_of(getattr(model, part))) for part in PARTS}
    found["sessions"] = ("", {}) if model.sessions is None else ("yes", texts_of(model.sessions))
    return found


def parts_sent(sent: QueryDict) -> Parts:
    """What the inputs hold, named "PART-FIELD"; a field of another kind than the chosen one is left away."""
    found: Parts = {}
    for part in (*PARTS, "sessions"):
        texts = {
            key.removeprefix(f"{part}-"): str(value)
            for key, value in sent.items()
            if key.startswith(f"{part}-")
        }
        kind = texts.pop("kind", "")
        if part in PARTS and kind not in PARTS[part]:
            kind = next(iter(PARTS[part]))
        found[part] = (kind, texts)
    return found


def model_of(parts: Parts) -> dict[str, Any]:
    """As the API takes it."""
    model: dict[str, Any] = {
        part: {"kind": parts[part][0], **from_texts(PARTS[part][parts[part][0]], parts[part][1])}
        for part in PARTS
    }
    return (
        {**model, "sessions": from_texts(Sessions, parts["sessions"][1])} if parts["sessions"][0] else model
    )


def drawn(
    parts: Parts, form: GenerateForm, project: Project, user: Any, *, show_errors: bool
) -> dict[str, Any]:
    rows = (
        TrafficSet.objects.visible_to(user).filter(project=project).values_list("pk", "name")[:MOST_CHOICES]
    )
    traffics = [(str(pk), name) for pk, name in rows]
    errors = form.errors if show_errors else {}
    shown = []
    for key, kinds in PARTS.items():
        kind, texts = parts[key]
        chosen = kinds[kind]
        made = inputs(chosen, key, texts, _own(errors, key), traffics)
        titles = [(name, one.TITLE) for name, one in kinds.items()]
        shown.append(Part(key, TITLES[key], kind, titles, chosen.ABOUT, made))
    sessions = inputs(Sessions, "sessions", parts["sessions"][1], _own(errors, "sessions"))
    return {"parts": shown, "sessions": sessions, "with_sessions": bool(parts["sessions"][0]), "form": form,
            "sessions_about": Sessions.ABOUT}  # fmt: skip


def _own(errors: Any, part: str) -> dict[str, list[str]]:
    path = f"model.{part}."
    return {
        key.removeprefix(path): list(map(str, found)) for key, found in errors.items() if key.startswith(path)
    }


def form_of(request: HttpRequest, project: Project, parts: Parts, sent: dict[str, str]) -> GenerateForm:
    return GenerateForm({**sent, "model": model_of(parts)}, project=project, user=request.user, defer=True)


def _sent(request: HttpRequest) -> dict[str, str]:
    return {key: request.POST.get(key, "") for key in ("name", "requests", "duration_s", "seed")}


@require_http_methods(["GET", "POST"])
def model(request: HttpRequest) -> HttpResponse:
    """GET ``?preset=NAME`` begins with that preset, ``?fit=ID`` with the model of a traffic. Without scripts a
    changed kind comes here too."""
    project = chosen_project(request)
    if request.method == "GET":
        begun = _beginning(request)
        if isinstance(begun, HttpResponse):
            return begun
        chosen, requests = begun
        parts = parts_of_model(chosen)
        form = form_of(request, project, parts, {"requests": str(requests), "seed": "0"})
        context = drawn(parts, form, project, request.user, show_errors=False)
        return render(request, "planner/traffic_model.html", {**context, **outcome(form)})
    parts, save = parts_sent(request.POST), request.POST.get("do", "save") == "save"
    if save:
        limits.spend(limits.UPLOAD, str(request.user.pk))
    form = form_of(request, project, parts, _sent(request))
    if save and form.is_valid():
        return made_or_started(request, TrafficJob.GENERATE, project, form)
    context = {
        **drawn(parts, form, project, request.user, show_errors=save),
        **outcome(form),
        "refused": save,
    }
    return render(request, "planner/traffic_model.html", context, status=422 if save else 200)


def _beginning(request: HttpRequest) -> tuple[SyntheticModel, int] | HttpResponse:
    """The model that the page begins with, and how many requests of it; or to the page that says why there is none."""
    try:
        pk = uuid.UUID(request.GET.get("fit", ""))
    except ValueError:
        preset = PRESETS.get(request.GET.get("preset", ""), PRESETS["chat"])
        return preset.model(), preset.requests
    row = get_visible(TrafficSet.objects.all(), request.user, pk)
    kinds = {key: request.GET.get(key, "") for key in FIT_PARTS}
    form = FitForm(kinds, traffic=row, defer=True)
    if not form.is_valid() or form.report is None:
        return redirect(f"{reverse('planner:traffic_fit', args=[pk])}?{urlencode(kinds)}")
    return form.report.model, min(row.statistics["requests"], 100_000)


@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """htmx: what comes out, with errors beside their fields; after a change of kind the fields as well."""
    project = chosen_project(request)
    limits.spend(limits.LOOK, str(request.user.pk))
    parts = parts_sent(request.POST)
    form = form_of(request, project, parts, _sent(request))
    kinds = bool(request.POST.get("do"))
    context = {**drawn(parts, form, project, request.user, show_errors=not kinds), **outcome(form)}
    template = "planner/_model_parts.html" if kinds else "planner/_model_preview.html"
    return render(request, template, context)


def outcome(form: GenerateForm) -> dict[str, Any]:
    if form.is_valid() and form.deferred:
        return {"made": None, "large": True}
    return {"made": statistics(form.traffic()) if form.is_valid() else None}
