"""How a traffic's page says what it was shaped of: operations in words, parents with links, digests."""

from __future__ import annotations

import json
from typing import Any

from django.urls import reverse

from planner.models import TrafficSet
from planner.traffic.shaping import parse_operations


def shaped_context(row: TrafficSet, user: Any) -> dict[str, Any] | None:
    """None for a traffic that was not shaped."""
    recipe = row.recipe.get("shape")
    if recipe is None:
        return None
    ids = [parent["id"] for parent in recipe["parents"]]
    there = set(map(str, TrafficSet.objects.visible_to(user).filter(pk__in=ids).values_list("pk", flat=True)))
    parents = [
        {
            **parent,
            "url": reverse("planner:traffic_detail", args=[parent["id"]]) if parent["id"] in there else "",
        }
        for parent in recipe["parents"]
    ]
    return {
        "sentences": [one.sentence() for one in parse_operations(recipe["operations"])],
        "parents": parents,
        "seed": recipe["seed"],
        "numpy": recipe["numpy"],
        "digest": row.recipe["arrays_sha256"],
        "json": json.dumps(recipe["operations"], indent=1),
    }
