"""What the planner's management commands share."""

from __future__ import annotations

from typing import Any

from config.commandline import uploads
from planner.forms import SynthesiseForm, UploadTrafficForm
from planner.traffic import PRESETS


def traffic_form(file_or_preset: str, options: dict[str, Any]) -> UploadTrafficForm | SynthesiseForm:
    """The bound form for a preset's name or a file of this machine; CommandError (exit 2) for no such file."""
    keys = (*UploadTrafficForm.base_fields, *SynthesiseForm.base_fields)
    data = {key: options[key] for key in keys if options.get(key) is not None and key != "name"}
    if file_or_preset in PRESETS:
        return SynthesiseForm({**data, "preset": file_or_preset})
    return UploadTrafficForm(data, uploads(file=file_or_preset))
