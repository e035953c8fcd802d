"""Pages that make one traffic of another: operations in a row, what comes out beside them, before it is kept."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_POST

from accounts import limits
from accounts.access import get_writable
from planner.described_inputs import Input, inputs
from planner.models import TrafficJob, TrafficSet
from planner.shape_forms import ShapeForm, mergeable
from planner.traffic import statistics
from planner.traffic.described import from_texts
from planner.traffic.shaping import MAX_OPERATIONS, OPERATIONS
from planner.traffic_job_views import made_or_started

MOST_CHOICES = 200
Chain = list[tuple[str, dict[str, str]]]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the chain as the page shows it; numbers count from 1 for people."""

    index: int
    op: str
    title: str
    about: str
    inputs: list[Input]
    errors: tuple[str, ...]

    @property
    def number(self) -> int:
        return self.index + 1


def chain_of(sent: QueryDict) -> Chain:
    """What the page's inputs hold: (operation, texts of its fields) in order. Names are "op-INDEX-FIELD"."""
    found: dict[int, dict[str, str]] = {}
    for key, value in sent.items():
        match = re.fullmatch(r"op-(\d{1,3})-(\w+)", key)
        if match:
            found.setdefault(int(match[1]), {})[match[2]] = str(value)
    return [(texts.pop("op", ""), texts) for _, texts in sorted(found.items())][: MAX_OPERATIONS + 1]


def changed(chain: Chain, action: str) -> Chain:
    """The chain after a button: "add:OP", "remove:INDEX", "up:INDEX", "down:INDEX"."""
    verb, _, what = action.partition(":")
    chain = list(chain)
    if verb == "add" and what in OPERATIONS and len(chain) < MAX_OPERATIONS:
        return [*chain, (what, {})]
    at = int(what) if what.isdecimal() and len(what) < 4 else -1
    if not 0 <= at < len(chain):
        return chain
    if verb == "remove":
        del chain[at]
    to = at - 1 if verb == "up" else at + 1 if verb == "down" else -1
    if 0 <= to < len(chain):
        chain[at], chain[to] = chain[to], chain[at]
    return chain


def operations_of(chain: Chain) -> list[dict[str, Any]]:
    """As the API takes them."""
    return [
        {"op": op, **(from_texts(OPERATIONS[op], texts) if op in OPERATIONS else {})} for op, texts in chain
    ]


def form_of(request: HttpRequest, row: TrafficSet, chain: Chain) -> ShapeForm:
    sent = {"name": request.POST.get("name", ""), "seed": request.POST.get("seed", "0")}
    return ShapeForm({**sent, "operations": operations_of(chain)}, traffic=row, user=request.user, defer=True)


def context_of(form: ShapeForm, row: TrafficSet, chain: Chain, *, show_errors: bool = True) -> dict[str, Any]:
    rows = mergeable(row, form.user).values_list("pk", "name")[:MOST_CHOICES]
    traffics = [(str(pk), f"{name} (this one)" if pk == row.pk else name) for pk, name in rows]
    errors = dict(form.errors.items()) if show_errors and form.is_bound else {}
    steps = []
    for index, (op, texts) in enumerate(chain):
        if op not in OPERATIONS:
            continue
        kind, path = OPERATIONS[op], f"operations.{index}."
        own = {
            key.removeprefix(path): list(map(str, found))
            for key, found in errors.items()
            if key.startswith(path)
        }
        drawn = inputs(kind, f"op-{index}", texts, own, traffics)
        known = {entry.name.rpartition("-")[2] for entry in drawn}
        other = tuple(message for key, found in own.items() if key not in known for message in found)
        steps.append(Step(index, op, kind.TITLE, kind.ABOUT, drawn, other))
    menu = [(name, kind.TITLE, kind.ABOUT) for name, kind in OPERATIONS.items()]
    return {"traffic": row, "form": form, "steps": steps, "menu": menu, "full": len(chain) >= MAX_OPERATIONS}


def consequences(form: ShapeForm, row: TrafficSet, chain: Chain) -> dict[str, Any]:
    """Before and after; or the step that is not complete yet."""
    if chain and form.is_valid() and form.deferred:
        return {"before": row.statistics, "after": None, "large": True}
    if chain and form.is_valid():
        after = statistics(form.traffic())
        return {"before": row.statistics, "after": after, "sentences": [one.sentence() for one in form.done]}
    bad = sorted({int(key.split(".")[1]) + 1 for key in form.errors if re.match(r"operations\.\d", key)})
    return {"before": row.statistics, "after": None, "bad": bad, "empty": not chain}


@require_http_methods(["GET", "POST"])
def shape(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Without scripts the buttons of the chain come here too."""
    row = get_writable(TrafficSet.objects.select_related("project"), request.user, pk)
    chain = chain_of(request.POST)
    action = request.POST.get("do", "save")
    if request.method == "GET" or action != "save":
        chain = changed(chain, action)
        form = form_of(request, row, chain)
        shown = consequences(form, row, chain)
        return render(request, "planner/traffic_shape.html",
                      {**context_of(form, row, chain, show_errors=False), **shown})  # fmt: skip
    limits.spend(limits.UPLOAD, str(request.user.pk))
    form = form_of(request, row, chain)
    if not form.is_valid():
        context = {**context_of(form, row, chain), **consequences(form, row, chain), "refused": True}
        return render(request, "planner/traffic_shape.html", context, status=422)
    return made_or_started(request, TrafficJob.SHAPE, row.project, form, parent=row)


@require_POST
def preview(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """htmx: what comes out, with errors beside their fields; after a button, the chain as well."""
    row = get_writable(TrafficSet.objects.select_related("project"), request.user, pk)
    chain = chain_of(request.POST)
    limits.spend(limits.LOOK, str(request.user.pk))
    action = request.POST.get("do", "")
    chain = changed(chain, action)
    form = form_of(request, row, chain)
    context = {**context_of(form, row, chain, show_errors=not action), **consequences(form, row, chain)}
    template = "planner/_shape_chain.html" if action else "planner/_shape_preview.html"
    return render(request, template, {**context, "new": action.startswith("add:")})
