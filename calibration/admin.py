"""Calibrations in the administration: to look at and to delete; their numbers are measured, not typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from calibration.models import Calibration, Device

admin.site.site_header = admin.site.site_title = "Ridgeline administration"

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin


class ReadOnlyAdmin(Base):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Calibration)
class CalibrationAdmin(ReadOnlyAdmin):
    list_display = ("name", "status", "published", "source", "device", "project", "owner", "created_at")
    list_filter = ("status", "published", "source")
    search_fields = ("name", "device")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Not of one that is being measured: its job would write to a row that is gone. It can be cancelled first."""
        return super().has_delete_permission(request, obj) and not (obj is not None and obj.is_active)


@admin.register(Device)
class DeviceAdmin(ReadOnlyAdmin):
    list_display = ("name", "label", "hostname", "total_bytes", "free_bytes", "seen_at")
