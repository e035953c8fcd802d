"""Frozen dataclasses whose fields say what they mean: label, unit, limits, help.

One description serves everybody: `parse` reads and checks JSON against it (strictly: a number in quotes is not a
number, an unknown key is an error), `from_texts` reads what a page's inputs hold, `to_dict` writes it back, and
pages and the API's documentation show the same words. Errors name the field by its path, "operations.1.factor".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from planner.traffic.errors import TrafficError, TrafficFileError

Kind = Literal["number", "whole", "choice", "text", "numbers", "names", "yes", "traffic"]
MAX_LIST = 50
MAX_TEXT = 120
Described = TypeVar("Described")


@dataclass(frozen=True, slots=True)
class About:
    """Of one field. `low` and `high` belong to the range, `above` does not; `choices` are (value, words); `either`
    marks fields of which one must be given."""

    label: str
    kind: Kind
    unit: str = ""
    help: str = ""
    low: float | None = None
    above: float | None = None
    high: float | None = None
    choices: tuple[tuple[str, str], ...] = ()
    optional: bool = False
    either: bool = False


def number(label: str, unit: str, *, default: Any = MISSING, **about: Any) -> Any:
    return _field(label, "number", default, unit=unit, **about)


def whole(label: str, unit: str, *, default: Any = MISSING, **about: Any) -> Any:
    return _field(label, "whole", default, unit=unit, **about)


def choice(label: str, choices: Sequence[tuple[str, str]], *, default: Any = MISSING, **about: Any) -> Any:
    return _field(label, "choice", default, choices=tuple(choices), **about)


def text(label: str, *, default: Any = MISSING, **about: Any) -> Any:
    return _field(label, "text", default, **about)


def numbers(label: str, unit: str, *, default: Any = MISSING, **about: Any) -> Any:
    """A tuple of whole numbers."""
    return _field(label, "numbers", default, unit=unit, **about)


def names(label: str, *, default: Any = MISSING, **about: Any) -> Any:
    """A tuple of texts."""
    return _field(label, "names", default, **about)


def yes(label: str, **about: Any) -> Any:
    """False unless ticked."""
    return _field(label, "yes", False, **about)


def traffic(label: str, **about: Any) -> Any:
    """The id of another traffic."""
    return _field(label, "traffic", MISSING, **about)


def _field(label: str, kind: Kind, default: Any, **about: Any) -> Any:
    optional = default is not MISSING
    return field(default=default, metadata={"about": About(label, kind, optional=optional, **about)})


def described_fields(kind: type[Any]) -> list[tuple[Field[Any], About]]:
    return [(entry, entry.metadata["about"]) for entry in fields(kind) if "about" in entry.metadata]


def parse(kind: type[Described], data: Any, path: str) -> Described:
    """An instance from JSON. TrafficError with every field that is wrong; `path` is where `data` stands."""
    if not isinstance(data, Mapping):
        raise TrafficError([_problem(path, "This must be an object.")])
    known = {entry.name: (entry, about) for entry, about in described_fields(kind)}
    problems = [
        _problem(f"{path}.{key}", f"There is no such field; there are {', '.join(known) or 'none'}.")
        for key in data
        if key not in known
    ]
    values = {}
    for name, (entry, about) in known.items():
        given = data.get(name)
        if given is None:
            if entry.default is MISSING:
                problems.append(_problem(f"{path}.{name}", "This field is required."))
            continue
        wrong, value = _checked(given, about)
        if wrong:
            problems.append(_problem(f"{path}.{name}", wrong))
        values[name] = value
    if problems:
        raise TrafficError(problems)
    return kind(**values)


def _checked(given: Any, about: About) -> tuple[str, Any]:
    """What is wrong with a value ("" if nothing), and the value as it is kept."""
    match about.kind:
        case "number" | "whole":
            return _number(given, about)
        case "choice":
            allowed = [value for value, _ in about.choices]
            return ("" if given in allowed else f"It must be one of {', '.join(allowed)}."), given
        case "yes":
            return ("" if isinstance(given, bool) else "It must be true or false."), given
        case "text" | "traffic":
            if not isinstance(given, str):
                return "It must be text.", given
            line = " ".join(given.split())
            if not line or len(line) > MAX_TEXT or not line.isprintable():
                return f"It must be 1 to {MAX_TEXT} printable characters.", line
            return "", line
        case _:
            return _list(given, about)


def _number(given: Any, about: About) -> tuple[str, Any]:
    is_whole = about.kind == "whole"
    if isinstance(given, bool) or not isinstance(given, int | float) or not _is_finite(given):
        return f"It must be a {'whole ' if is_whole else ''}number.", given
    if is_whole and given != int(given):
        return "It must be a whole number.", given
    value = int(given) if is_whole else float(given)
    if (
        (about.above is not None and value <= about.above)
        or (about.low is not None and value < about.low)
        or (about.high is not None and value > about.high)
    ):
        return f"It must be {_range(about)}.", value
    return "", value


def _is_finite(value: float) -> bool:
    """False also for whole numbers that no float holds."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _range(about: About) -> str:
    parts = []
    if about.above is not None:
        parts.append(f"above {about.above:,.10g}")
    if about.low is not None:
        parts.append(f"at least {about.low:,.10g}")
    if about.high is not None:
        parts.append(f"at most {about.high:,.10g}")
    return " and ".join(parts)


def _list(given: Any, about: About) -> tuple[str, Any]:
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MAX_LIST:
        return f"It must be a list of 1 to {MAX_LIST} {about.kind}.", given
    one = About(about.label, "whole" if about.kind == "numbers" else "text", low=about.low, high=about.high)
    checked = [_checked(item, one) for item in given]
    wrong = next((problem for problem, _ in checked if problem), "")
    return wrong and f"Each entry: {wrong}", tuple(value for _, value in checked)


def from_texts(kind: type[Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """What the inputs of a page hold, as the JSON that `parse` takes: empty ones are left away, numbers are read
    where they are numbers, and lists are separated by commas."""
    found: dict[str, Any] = {}
    for entry, about in described_fields(kind):
        given = texts.get(entry.name, "").strip()
        if not given:
            continue
        match about.kind:
            case "number" | "whole":
                found[entry.name] = _read_number(given)
            case "numbers":
                found[entry.name] = [_read_number(part) for part in given.replace(",", " ").split()]
            case "names":
                found[entry.name] = [part.strip() for part in given.split(",") if part.strip()]
            case "yes":
                found[entry.name] = True
            case _:
                found[entry.name] = given
    return found


def _read_number(given: str) -> Any:
    for read in (int, float):
        try:
            value = read(given)
        except ValueError:
            continue
        return value if _is_finite(value) else given
    return given


def to_dict(described: Any) -> dict[str, Any]:
    """The fields that are not at their defaults, as JSON."""
    return {
        entry.name: list(value) if isinstance(value, tuple) else value
        for entry, _ in described_fields(type(described))
        if (value := getattr(described, entry.name)) != entry.default
    }


def texts_of(described: Any) -> dict[str, str]:
    """What a page's inputs hold for it; the inverse of `from_texts`."""
    shown = {}
    for key, value in to_dict(described).items():
        if isinstance(value, list):
            shown[key] = ", ".join(map(str, value))
        elif isinstance(value, bool):
            shown[key] = "on"
        else:
            shown[key] = f"{value:.12g}" if isinstance(value, float) else str(value)
    return shown


def in_words(described: Any) -> str:
    """`Mean rate 2.5 requests/s; CV of the gaps 1.4`: the fields that are not at their defaults, with their units."""
    about = {entry.name: about for entry, about in described_fields(type(described))}
    return "; ".join(
        f"{about[name].label} {_said(value, about[name])}" for name, value in to_dict(described).items()
    )


def _said(value: Any, about: About) -> str:
    if about.kind == "choice":
        return dict(about.choices).get(value, str(value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, float) and abs(value) < 1e5:
        return f"{value:,.5g} {about.unit}".rstrip()
    return (f"{value:,} {about.unit}" if isinstance(value, int | float) else str(value)).rstrip()


def problem_of(error: TrafficError, path: str, known: Collection[str] | None = None) -> TrafficError:
    """The same problems, their fields (or those that are `known`) under `path`."""
    moved = [
        replace(one, field=f"{path}.{one.field}") if known is None or one.field in known else one
        for one in error.errors
    ]
    return TrafficError(moved, error.total)


def _problem(path: str, message: str) -> TrafficFileError:
    return TrafficFileError(None, None, message, code="option", field=path)
