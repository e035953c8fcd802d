"""Inputs of a page for the fields that planner/traffic/described.py describes, with what was typed and what is wrong
with it; and the same fields as JSON schema for the API's documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.traffic.described import MAX_LIST, MAX_TEXT, About, described_fields

Options = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Input:
    """One field as templates/planner/_described.html draws it."""

    id: str
    name: str
    about: About
    value: str
    options: Options
    errors: tuple[str, ...]
    placeholder: str = ""

    @property
    def is_optional(self) -> bool:
        """Whether the page says so: a choice always holds something, and of fields of a kind one is needed."""
        return self.about.optional and not self.about.either and self.about.kind not in ("choice", "yes")

    @property
    def label(self) -> str:
        return f"{self.about.label} [{self.about.unit}]" if self.about.unit else self.about.label

    @property
    def described_by(self) -> str:
        parts = [f"{self.id}_helptext"] if self.about.help else []
        return " ".join([*parts, f"{self.id}_error"])

    @property
    def mode(self) -> str:
        """Which keys a phone shows."""
        return {"number": "decimal", "whole": "numeric"}.get(self.about.kind, "text")


def inputs(
    kind: type[Any],
    prefix: str,
    texts: Mapping[str, str],
    errors: Mapping[str, Sequence[str]] | None = None,
    traffics: Options = (),
) -> list[Input]:
    """Of every field of `kind`: named "PREFIX-FIELD", holding `texts`; a field that was not sent holds its default."""
    made = []
    for entry, about in described_fields(kind):
        default = entry.default if about.kind == "choice" and isinstance(entry.default, str) else ""
        options: Options = ()
        if about.kind == "choice":
            options = about.choices
        elif about.kind == "traffic":
            options = [("", "Choose a traffic"), *traffics]
        name = f"{prefix}-{entry.name}"
        wrong = tuple((errors or {}).get(entry.name, ()))
        hint = f"{entry.default:g}" if about.optional and isinstance(entry.default, int | float) else ""
        made.append(Input(f"id_{name}", name, about, texts.get(entry.name, default), options, wrong, hint))
    return made


def json_schema(kind: type[Any]) -> dict[str, Any]:
    """Properties and required fields of `kind` as JSON schema."""
    properties, required = {}, []
    for entry, about in described_fields(kind):
        properties[entry.name] = _schema(about)
        if not about.optional and about.kind != "yes":
            required.append(entry.name)
    return {"properties": properties, "required": required}


def _schema(about: About) -> dict[str, Any]:
    words = (
        about.label + (f" [{about.unit}]" if about.unit else "") + (f". {about.help}" if about.help else "")
    )
    limits = {"minimum": about.low, "exclusiveMinimum": about.above, "maximum": about.high}
    bounds = {key: value for key, value in limits.items() if value is not None}
    text = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
    match about.kind:
        case "number":
            kind: dict[str, Any] = {"type": "number", **bounds}
        case "whole":
            kind = {"type": "integer", **bounds}
        case "choice":
            kind = {"type": "string", "enum": [value for value, _ in about.choices]}
        case "yes":
            kind = {"type": "boolean"}
        case "numbers":
            kind = {
                "type": "array",
                "items": {"type": "integer", **bounds},
                "minItems": 1,
                "maxItems": MAX_LIST,
            }
        case "names":
            kind = {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_LIST}
        case "traffic":
            kind = {"type": "string", "format": "uuid"}
        case _:
            kind = text
    return {**kind, "description": words}
