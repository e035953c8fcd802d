"""config.json, as published beside the weights, to Architecture: the family by its name, then its reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from calibration.architecture.families import FAMILIES
from calibration.architecture.kinds import SUPPORTED_MODEL_TYPES, WRAPPERS
from calibration.architecture.model import Architecture
from calibration.architecture.presets import PRESETS
from calibration.architecture.values import UnsupportedArchitecture, optional_mapping, shown, text

MAX_CONFIG_BYTES = 1 << 20
_TEXT_ONLY = "Only the text decoder of this model is described, not what it has for images."


def parse_config(mapping: Mapping[str, object], name: str = "") -> Architecture:
    """A decoded config.json as an Architecture; of a model for text and images, its text decoder.

    Raises UnsupportedArchitecture, and nothing else, for a family we do not know and for values no model has.
    """
    if not isinstance(mapping, Mapping):
        raise UnsupportedArchitecture("config", f"must be a JSON object, got {shown(mapping)}")
    model_type = text(mapping, "model_type")
    if model_type in WRAPPERS:
        architecture = parse_config(_text_config(mapping, model_type), name)
        return replace(architecture, notes=(*architecture.notes, _TEXT_ONLY))
    reader = FAMILIES.get(model_type)
    if reader is None:
        known = ", ".join((*SUPPORTED_MODEL_TYPES, *WRAPPERS))
        message = f"{shown(model_type)} is not supported (supported: {known})"
        raise UnsupportedArchitecture("model_type", message)
    # What follows from believable values can still be beyond belief: whatever is returned can be stored too.
    return Architecture.from_dict(reader(mapping, name).to_dict())


def parse_config_text(content: str | bytes, name: str = "") -> Architecture:
    """The text of a config.json (at most 1 MiB) as an Architecture; raises UnsupportedArchitecture."""
    if len(content) > MAX_CONFIG_BYTES:
        raise UnsupportedArchitecture("config", f"is longer than {MAX_CONFIG_BYTES:,} bytes")
    try:
        config = json.loads(content)
    except RecursionError:
        raise UnsupportedArchitecture("config", "is nested too deeply") from None
    except ValueError as error:  # bad JSON, bad UTF-8, an integer of thousands of digits
        raise UnsupportedArchitecture("config", f"is not JSON: {str(error)[:200]}") from None
    return parse_config(config, name)


def load_architecture(config_path_or_preset: str) -> Architecture:
    """A preset by its name, or a config.json by its path (a folder means the config.json in it).

    Raises UnsupportedArchitecture: field "model" when it is neither, else as parse_config.
    """
    preset = PRESETS.get(config_path_or_preset.strip().lower())
    if preset is not None:
        return preset
    try:
        path = Path(config_path_or_preset)
        if path.is_dir():
            path = path / "config.json"
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError):
        raise UnsupportedArchitecture("model", no_model(config_path_or_preset)) from None
    return parse_config_text(content, path.parent.name if path.name == "config.json" else path.stem)


def no_model(word: str) -> str:
    """What to say of a word that names no model: which do."""
    return f"{shown(word)} is neither a readable config.json nor one of {', '.join(PRESETS)}"


def _text_config(mapping: Mapping[str, object], model_type: str) -> dict[str, object]:
    """The text decoder's part of a wrapper's file, with what only the outer level says."""
    inner = optional_mapping(mapping, "text_config")
    if inner is None:
        raise UnsupportedArchitecture("text_config", "is missing")
    expected = WRAPPERS[model_type]
    if inner.get("model_type", expected) != expected:
        message = f"must be of model_type {expected} in {model_type}, got {shown(inner.get('model_type'))}"
        raise UnsupportedArchitecture("text_config", message)
    outer = {key: mapping[key] for key in ("_name_or_path", "quantization_config") if key in mapping}
    if "tie_word_embeddings" not in inner and "tie_word_embeddings" in mapping:
        outer["tie_word_embeddings"] = mapping["tie_word_embeddings"]
    return {"model_type": expected, **inner, **outer}
