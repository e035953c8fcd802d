"""When does a schedule come due? Intervals and cron expressions in a time zone, within a window of the day.

An interval counts seconds from an anchor, whatever clocks on walls do. A cron expression names wall clock times:

  - one that the spring change leaves out comes as much later as the gap is long (RFC 5545: the offset before it),
  - one that the autumn change brings twice comes once, the first time,
  - with a wildcard in the hours ("*/15 * * * *") every real quarter of an hour comes, in a doubled hour too.

What comes due outside the window waits for it to open; what waits together is one occasion. All instants are aware;
what is returned is in UTC. The fields of an expression are read by Celery's parser, the one that beat uses, after two
things that it does not do: Sunday may be 7 as well as 0, as crons have it, and what is no expression is refused (it
reads "1-5-9" as "1-5" and the month "mon").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab, crontab_parser

LONGEST_SEARCH_DAYS = 8 * 366 + 2  # 29 February may be eight years away
MOST_COUNTED = 999
#: Of an expression, in order: what they are called, and their first and last number.
FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_NAMES = {
    "month": ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
              "november", "december"),
    "day of week": ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
}  # fmt: skip
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]{1,3}))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,2}")
LONGEST_FIELD = 64  # characters of beat's columns for month and day of week, the shortest that it has


class BadRule(ValueError):
    """`.field` names what is wrong, the message says how."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Cron:
    """The values that each field of an expression takes; `every_hour`: its hours begin with a wildcard."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # Sunday is 0
    every_hour: bool

    def falls_on(self, day: date) -> bool:
        return day.month in self.months and day.day in self.days and day.isoweekday() % 7 in self.weekdays


@lru_cache(maxsize=256)
def parse_cron(text: str) -> Cron:
    """Five fields: minute, hour, day of month, month, day of week. Raises BadRule."""
    minute, hour, day, month, weekday = _fields(text)
    if not day.startswith("*") and not weekday.startswith("*"):
        raise BadRule(
            "cron", "Crons disagree about a day of the month beside a day of the week: leave one of them *."
        )
    try:
        parsed: Any = crontab(
            minute=minute, hour=hour, day_of_month=day, month_of_year=month, day_of_week=weekday
        )
    except (ParseException, ValueError) as error:
        raise _unreadable(error) from None
    values = {"minutes": parsed.minute, "hours": parsed.hour, "days": parsed.day_of_month,
              "months": parsed.month_of_year, "weekdays": parsed.day_of_week}  # fmt: skip
    if empty := [name for name, found in values.items() if not found]:
        raise BadRule("cron", f"It never comes: no {empty[0]}.")
    return Cron(
        tuple(sorted(parsed.minute)), tuple(sorted(parsed.hour)), frozenset(parsed.day_of_month),
        frozenset(parsed.month_of_year), frozenset(parsed.day_of_week), hour.startswith("*"),
    )  # fmt: skip


def beat_fields(text: str) -> tuple[str, ...]:
    """The five fields of an expression that `parse_cron` takes, as beat's columns hold them and its parser reads them:
    a long one as the list of its values."""
    cron = parse_cron(text)
    values = (cron.minutes, cron.hours, cron.days, cron.months, cron.weekdays)
    return tuple(
        field if len(field) <= LONGEST_FIELD else ",".join(map(str, sorted(own)))
        for field, own in zip(_fields(text), values, strict=True)
    )


def _fields(text: str) -> tuple[str, ...]:
    """As Celery's parser reads them: Sunday as 0. Raises BadRule for what is no expression."""
    fields = text.lower().split()
    if len(fields) != len(FIELDS):
        raise BadRule("cron", f"A cron expression has five fields, not {len(fields)}.")
    for (name, first, last), field in zip(FIELDS, fields, strict=True):
        for part in field.split(","):
            _check_part(part, name, first, last)
    try:
        return (*fields[:-1], _with_sunday_as_0(fields[-1]))
    except (ParseException, ValueError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> BadRule:
    return BadRule("cron", f"This is not a cron expression: {str(error).rstrip('.')}.")


def _check_part(part: str, name: str, first: int, last: int) -> None:
    found = _PART.fullmatch(part)
    if found is None:
        raise BadRule("cron", f"This is not a cron expression: {part!r} is no {name}.")
    if found["step"] is not None and found["first"] is not None and found["last"] is None:
        raise BadRule(
            "cron", f"This is not a cron expression: {part!r} has a step, but no range to step through."
        )
    if found["step"] is not None and int(found["step"]) == 0:
        raise BadRule("cron", f"This is not a cron expression: {part!r} takes steps of 0.")
    names = _NAMES.get(name, ())
    for end in (found["first"], found["last"]):
        if end is None or (len(end) >= 3 and any(known.startswith(end) for known in names)):
            continue
        if not _NUMBER.fullmatch(end) or not first <= int(end) <= last:
            raise BadRule(
                "cron", f"This is not a cron expression: {end!r} is no {name}, from {first} to {last}."
            )


def _with_sunday_as_0(field: str) -> str:
    """The same days of the week without a 7: "5-7" is Friday to Sunday."""
    parts = [_ends(part) for part in field.split(",")]
    if not any("7" in ends for ends, _ in parts):
        return field
    days: set[int] = set()
    for ends, step in parts:
        first, last = ends[0], ends[-1]
        if last == "7" and first != "7":
            begin = min(crontab_parser(7).parse(first))
            days.update(day % 7 for day in range(begin, 8, step))
        else:
            zeros = "-".join("0" if end == "7" else end for end in ends)
            days |= crontab_parser(7).parse(f"{zeros}/{step}" if step > 1 else zeros)
    return ",".join(map(str, sorted(days)))


def _ends(part: str) -> tuple[list[str], int]:
    """The ends of a range, one or two, and its step."""
    ends, _, step = part.partition("/")
    return ["7" if end == "07" else end for end in ends.split("-")], int(step or 1)


@dataclass(frozen=True, slots=True)
class Rule:
    """Either `every_s` seconds from `anchor` on, or `cron`. `window`: (opens, closes) on the wall clock of `zone`,
    over midnight where it closes before it opens; None: always open."""

    zone: ZoneInfo
    anchor: datetime
    every_s: int | None = None
    cron: str = ""
    window: tuple[time, time] | None = None

    def next_after(self, moment: datetime) -> datetime:
        """The first occasion later than `moment`. Raises BadRule when none ever comes."""
        found = next(self.occasions_after(moment), None)
        if found is None:
            raise BadRule("cron", "It never comes: there is no such day.")
        return found

    def missed_between(self, first: datetime, now: datetime) -> int:
        """Occasions later than `first` and not later than `now`; counting ends at MOST_COUNTED."""
        counted = islice(takewhile(lambda at: at <= now, self.occasions_after(first)), MOST_COUNTED)
        return sum(1 for _ in counted)

    def occasions_after(self, moment: datetime) -> Iterator[datetime]:
        """All later than `moment`, in order and without end, as far as LONGEST_SEARCH_DAYS."""
        last = moment
        for raw in self._raw_after(moment):
            found = self.opens_after(raw)
            if found > last:
                yield found
                last = found

    def is_open(self, moment: datetime) -> bool:
        if self.window is None:
            return True
        opens, closes = self.window
        wall = moment.astimezone(self.zone).time()
        return opens <= wall < closes if opens < closes else wall >= opens or wall < closes

    def opens_after(self, moment: datetime) -> datetime:
        """The first instant from `moment` on at which the window is open."""
        if self.window is None or self.is_open(moment):
            return moment.astimezone(UTC)
        day = moment.astimezone(self.zone).date()
        for later in range(9):  # a window inside the hour that a change leaves out does not open that day
            found = self._instant(datetime.combine(day + timedelta(later), self.window[0]))
            if found >= moment and self.is_open(found):
                return found
        raise BadRule("window_start", "This window never opens.")

    def _raw_after(self, moment: datetime) -> Iterator[datetime]:
        """As if the window were always open; may begin with what the window moves to `moment` itself."""
        if self.every_s is not None:
            every = timedelta(seconds=self.every_s)
            at = self.anchor.astimezone(UTC)
            at += max(0, (moment - at) // every + 1) * every
            while True:
                yield at
                # All that comes due before the window opens moves to its opening.
                at += max(1, (self.opens_after(at) - at) // every) * every
        cron = parse_cron(self.cron)
        day = moment.astimezone(self.zone).date() - timedelta(days=1)
        for _ in range(LONGEST_SEARCH_DAYS):
            if cron.falls_on(day):
                yield from (at for at in self._instants_on(day, cron) if at > moment)
            day += timedelta(days=1)

    def _instants_on(self, day: date, cron: Cron) -> list[datetime]:
        found: set[datetime] = set()
        for hour in cron.hours:
            for minute in cron.minutes:
                wall = datetime.combine(day, time(hour, minute))
                if not cron.every_hour:
                    found.add(self._instant(wall))
                    continue
                for fold in (0, 1):
                    at = wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
                    if at.astimezone(self.zone).replace(tzinfo=None) == wall:
                        found.add(at)
        return sorted(found)

    def _instant(self, wall: datetime) -> datetime:
        return wall.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
