"""What the user may say about a file, checked before the file is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from planner.traffic.errors import TrafficError, refuse
from planner.traffic.layout import FORMATS, ROLES, UNIT_NAMES
from planner.traffic.model import positive_number

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
ENCODINGS = {
    "utf-8": "UTF-8",
    "utf-16-le": "UTF-16, little end first",
    "utf-16-be": "UTF-16, big end first",
    "windows-1252": "Windows-1252",
}
THOUSANDS = {".": "point", ",": "comma", " ": "space", "'": "apostrophe"}
LENGTH_UNITS = {"tokens": "tokens", "words": "words", "characters": "characters"}
_OFFSET = re.compile(r"[+-](0\d|1[0-4]):[0-5]\d")
TURN_FIRST_TOKEN_S = 0.5
TURN_TOKEN_S = 0.02


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """None leaves a question to the file.

    format: refuse the file unless it is this one · columns: role -> column, for ROLES; "" for "there is
    none"; what is not named is recognised · delimiter, header, encoding, decimal, thousands: the dialect of a
    CSV · time_unit: of a numeric time column · utc_offset: of stamps without a zone beside others with one ·
    time_origin: one clock for the file, or a new one wherever the times fall back ("each_run": the runs
    follow one another) · length_unit, tokens_per_unit: lengths that are words or characters ·
    rate_per_s, interarrival_cv, seed, requests: arrivals for files without times (a CV of 1 is Poisson) and
    how many are drawn from a distribution · max_model_len: leave out, and list, rows with prompt + output
    above it · zero_outputs: leave out rows without output, which are failed requests, or keep their arrival
    with one output token · spread_grid: spread requests that share a stamp over the tick of a coarse clock ·
    attempted_requests: how many were sent, where the file holds only those that ended well ·
    turn_first_token_s, turn_token_s: how long a turn that others wait for is taken to run: the first, and the
    second for each of its output tokens · session_prompts: whether a later turn's length is the whole
    prompt or what it adds.
    """

    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    header: bool | None = None
    encoding: str | None = None
    decimal: Literal[".", ","] | None = None
    thousands: str | None = None
    time_unit: Literal["s", "ms", "us", "ns", "min", "h", "d"] | None = None
    utc_offset: str | None = None
    time_origin: Literal["one", "each_run"] = "one"
    length_unit: Literal["tokens", "words", "characters"] | None = None
    tokens_per_unit: float | None = None
    rate_per_s: float | None = None
    interarrival_cv: float = 1.0
    seed: int = 0
    requests: int | None = None
    max_model_len: int | None = None
    zero_outputs: Literal["exclude", "keep_arrival"] = "exclude"
    spread_grid: bool = False
    attempted_requests: int | None = None
    turn_first_token_s: float = TURN_FIRST_TOKEN_S
    turn_token_s: float = TURN_TOKEN_S
    session_prompts: Literal["whole", "added"] | None = None

    def check(self) -> None:
        """TrafficError that names the option."""
        _one_of(self.format, "format", FORMATS, f"There is no format {self.format!r}; there are")
        _check_columns(self.columns)
        _one_of(self.delimiter, "delimiter", DELIMITERS)
        _one_of(self.encoding, "encoding", ENCODINGS)
        _one_of(self.thousands, "thousands", THOUSANDS)
        _one_of(self.time_unit, "time_unit", UNIT_NAMES)
        _one_of(self.length_unit, "length_unit", LENGTH_UNITS)
        _one_of(self.time_origin, "time_origin", ("one", "each_run"))
        _one_of(self.session_prompts, "session_prompts", ("whole", "added"))
        _one_of(self.zero_outputs, "zero_outputs", ("exclude", "keep_arrival"))
        if self.decimal not in (None, ".", ","):
            raise _option("decimal", 'decimal must be "." or ",".')
        if self.decimal is not None and self.decimal == self.thousands:
            raise _option("thousands", "The decimal mark and the thousands separator cannot be the same.")
        if self.utc_offset is not None and not _OFFSET.fullmatch(self.utc_offset):
            raise _option("utc_offset", "utc_offset must be like +02:00.")
        if self.tokens_per_unit is not None:
            positive_number(self.tokens_per_unit, "tokens_per_unit", "tokens")
            if self.tokens_per_unit > 1_000:
                raise _option("tokens_per_unit", "tokens_per_unit must be at most 1,000.")
        if self.rate_per_s is not None:
            positive_number(self.rate_per_s, "rate_per_s", "requests per second")
        if not 0 <= self.interarrival_cv <= 100:
            raise _option("interarrival_cv", "interarrival_cv must be 0 to 100.")
        if not 0 <= self.seed < 2**63:
            raise _option("seed", "seed must be a whole number from 0.")
        _at_least_one(self.requests, "requests", "requests")
        _at_least_one(self.attempted_requests, "attempted_requests", "requests")
        _at_least_one(self.max_model_len, "max_model_len", "tokens")
        for name in ("turn_first_token_s", "turn_token_s"):
            if not 0 <= getattr(self, name) <= 86_400:
                raise _option(name, f"{name} must be 0 to 86,400 seconds.")

    def changed(self) -> dict[str, Any]:
        """The options that are not at their defaults, for the recipe."""
        values = asdict(self)
        values["columns"] = dict(self.columns)
        defaults = asdict(ImportOptions())
        return {
            option.name: values[option.name]
            for option in fields(self)
            if values[option.name] != defaults[option.name]
        }


def _check_columns(columns: Mapping[str, str]) -> None:
    for role, name in columns.items():
        if role not in ROLES:
            raise _option(
                "columns", f"There is nothing called {role!r} to map; there are {', '.join(ROLES)}."
            )
        if not isinstance(name, str) or len(name) > 200:
            raise _option("columns", f"The column for {role} must be a name of at most 200 characters.")
    named = [name for name in columns.values() if name]
    double = next((name for name in named if named.count(name) > 1), None)
    if double is not None:
        raise _option("columns", f"The column {double!r} is mapped twice.")
    for role in ("prompt", "output"):
        if columns.get(role) == "":
            raise _option("columns", f"There must be a column for {role}.")


def _one_of(value: str | None, name: str, allowed: Any, words: str = "") -> None:
    if value is not None and value not in allowed:
        listed = ", ".join(repr(item) if not item.strip() else item for item in allowed)
        raise _option(name, f"{words or f'{name} must be one of'} {listed}.")


def _at_least_one(value: int | None, name: str, unit: str) -> None:
    if value is not None and (isinstance(value, bool) or not 1 <= value < 2**31):
        raise _option(name, f"{name} must be a whole number of {unit} above 0.")


def _option(name: str, message: str) -> TrafficError:
    return refuse(message, code="option", field=name)
