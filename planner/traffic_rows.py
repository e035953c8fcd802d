"""Traffic as rows: its arrays packed, stored and read back, and a shaped one made again from its parents."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from accounts.models import Project
from calibration.starting import save_named, written_once
from planner.models import TrafficArrays, TrafficSet
from planner.traffic import Traffic, from_npz_bytes, statistics, to_npz_bytes
from planner.traffic.shaping import Parent, remake


@dataclass(frozen=True, slots=True)
class PackedTraffic:
    """What is stored of a traffic, worked out: its arrays can be let go of before the database takes these."""

    columns: dict[str, Any]
    npz: bytes


def pack_traffic(traffic: Traffic) -> PackedTraffic:
    figures = statistics(traffic)
    columns = {
        "format": traffic.format, "source": traffic.source[:255], "warnings": figures.pop("warnings"),
        "statistics": figures, "recipe": dict(traffic.recipe),
    }  # fmt: skip
    return PackedTraffic(columns, to_npz_bytes(traffic))


def store_traffic(
    project: Project,
    owner: Any,
    name: str,
    packed: PackedTraffic,
    *,
    default_named: bool = False,
    pk: uuid.UUID | None = None,
) -> TrafficSet:
    """Stores the arrays and what a page shows of them. The file they came from is not kept.

    `default_named`: nobody chose its name, which is then made distinct. `pk`: of a form (config/once.py); where the row
    is there already, it is the answer.
    """
    row = TrafficSet(pk=pk or uuid.uuid4(), project=project, owner=owner, name=name[:120], **packed.columns)

    def write() -> TrafficSet:
        save_named(row, default_named=default_named)
        TrafficArrays.objects.create(traffic=row, npz=packed.npz)
        return row

    found: TrafficSet = written_once(TrafficSet.objects.all(), pk, write)
    return found


def create_traffic(
    project: Project,
    owner: Any,
    name: str,
    traffic: Traffic,
    *,
    default_named: bool = False,
    pk: uuid.UUID | None = None,
) -> TrafficSet:
    """`pack_traffic` and `store_traffic` in one."""
    return store_traffic(project, owner, name, pack_traffic(traffic), default_named=default_named, pk=pk)


def traffic_of(row: TrafficSet) -> Traffic:
    return from_npz_bytes(bytes(row.arrays.npz))


def parent_of(row: TrafficSet) -> Parent:
    return Parent(str(row.pk), row.name, traffic_of(row))


def remade(row: TrafficSet, user: Any) -> Traffic:
    """A shaped traffic made again from its parents, bit for bit; TrafficError where that is not possible."""
    ids = [parent["id"] for parent in row.recipe["shape"]["parents"]]
    parents = TrafficSet.objects.visible_to(user).filter(pk__in=ids)
    return remake(row.recipe, {str(parent.pk): traffic_of(parent) for parent in parents})
