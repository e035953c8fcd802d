"""When a schedule comes due: intervals, crons through changes of the clock, windows of the day."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from calibration.occasions import MOST_COUNTED, BadRule, Rule, beat_fields, parse_cron

BERLIN = ZoneInfo("Europe/Berlin")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # its clock changes by half an hour


def rule(cron: str = "", every_s: int | None = None, window=None, zone=BERLIN, anchor=None) -> Rule:
    return Rule(zone, anchor or datetime(2026, 1, 1, tzinfo=UTC), every_s, cron, window)


def local(given: Rule, start: datetime, count: int) -> list[str]:
    found = islice(given.occasions_after(start), count)
    return [at.astimezone(given.zone).strftime("%m-%d %H:%M %z") for at in found]


def test_a_wall_clock_time_comes_once_a_day_through_both_changes():
    spring = local(rule("30 2 * * *"), datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
    assert spring == ["03-29 03:30 +0200", "03-30 02:30 +0200"], "left out: as much later as the gap is long"
    autumn = local(rule("30 2 * * *"), datetime(2026, 10, 24, 12, tzinfo=UTC), 2)
    assert autumn == ["10-25 02:30 +0200", "10-26 02:30 +0100"], "twice there: the first time"
    half = local(rule("15 2 * * *", zone=LORD_HOWE), datetime(2026, 10, 3, 0, tzinfo=UTC), 2)
    assert half == ["10-04 02:45 +1100", "10-05 02:15 +1100"]


def test_every_real_quarter_of_an_hour_comes_in_a_doubled_hour_too():
    given = rule("*/15 * * * *")
    for start in (datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)):
        found = list(islice(given.occasions_after(start), 24))
        gaps = {after - before for before, after in pairwise(found)}
        assert gaps == {timedelta(minutes=15)}, start


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("cron", ["0 * * * *", "30 1 * * *", "0 0,12 * * *", "10-20/5 2 * * sun"])
def test_occasions_rise_for_a_year_and_stand_where_their_fields_say(zone, cron):
    given = rule(cron, zone=ZoneInfo(zone))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    found = [at for at in islice(given.occasions_after(start), 2000) if at < start + timedelta(days=365)]
    assert found == sorted(set(found))
    cron_fields, moved = parse_cron(cron), 0
    for at in found:
        wall = at.astimezone(given.zone)
        stands = wall.minute in cron_fields.minutes and wall.hour in cron_fields.hours
        moved += not stands
    assert moved <= 3, "only what a change of the clock leaves out is moved"


def test_an_interval_counts_seconds_from_its_anchor_whatever_clocks_do():
    anchor = datetime(2026, 3, 28, 1, 7, tzinfo=UTC)
    found = list(islice(rule(every_s=86_400, anchor=anchor).occasions_after(anchor), 3))
    assert found == [anchor + timedelta(days=n) for n in (1, 2, 3)]
    assert rule(every_s=600, anchor=anchor).next_after(anchor - timedelta(days=3)) == anchor


def test_what_comes_due_outside_the_window_waits_for_it_once():
    night = (time(22), time(0, 30))
    hourly = local(rule(every_s=3600, window=night), datetime(2026, 1, 5, 12, tzinfo=UTC), 5)
    assert [text[6:11] for text in hourly] == ["22:00", "23:00", "00:00", "22:00", "23:00"]
    noon = local(rule("0 12 * * mon-fri", window=(time(22), time(6))), datetime(2026, 1, 9, 0, tzinfo=UTC), 2)
    assert noon == ["01-09 22:00 +0100", "01-12 22:00 +0100"]


def test_a_window_inside_the_hour_that_is_left_out_does_not_open_that_day():
    given = rule("0 12 * * *", window=(time(2, 10), time(2, 50)))
    opened = local(given, datetime(2026, 3, 27, 12, tzinfo=UTC), 3)
    assert opened == ["03-30 02:10 +0200", "03-31 02:10 +0200", "04-01 02:10 +0200"]


def test_missed_ones_are_counted_to_a_bound():
    given = rule(every_s=600)
    start = datetime(2026, 2, 1, tzinfo=UTC)
    assert given.missed_between(start, start + timedelta(hours=1)) == 6
    assert given.missed_between(start, start + timedelta(seconds=599)) == 0
    assert given.missed_between(start, start + timedelta(days=300)) == MOST_COUNTED


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 30 2 *", "*/0 * * * *", "x * * * *",
     "-1 * * * *", "0 0 1 * mon", "0 3 * * 8", "0 3 * * 9-7", "1-5-9 * * * *", "*/15* * * * *", "1_0 * * * *",
     "0 mon * * *", "0 3 * mon *", "0 3 * * 7-7/0", "5/15 * * * *"],
)  # fmt: skip
def test_what_is_no_cron_is_refused_in_words(cron):
    with pytest.raises(BadRule) as refusal:
        parse_cron(cron)
    assert refusal.value.field == "cron" and str(refusal.value).endswith(".")


def test_the_29th_of_february_is_waited_for():
    assert rule("0 0 29 2 *", zone=ZoneInfo("UTC")).next_after(datetime(2026, 3, 1, tzinfo=UTC)).year == 2028


@pytest.mark.parametrize(
    ("weekdays", "days"),
    [("7", {0}), ("07", {0}), ("7-7", {0}), ("5-7", {5, 6, 0}), ("fri-7", {5, 6, 0}), ("0-7", set(range(7))),
     ("1-7/2", {1, 3, 5, 0}), ("7-2", {0, 1, 2}), ("1,7", {0, 1}), ("sat-mon", {6, 0, 1}), ("SUN", {0})],
)  # fmt: skip
def test_sunday_is_7_as_well_as_0(weekdays, days):
    """As crons have it; beat's parser, which knows 0 only, is given what it reads as the same days."""
    cron = f"0 3 * * {weekdays}"
    assert parse_cron(cron).weekdays == days
    assert crontab(day_of_week=beat_fields(cron)[4]).day_of_week == days


def test_beat_gets_long_fields_as_values_that_its_columns_hold():
    months = ",".join(["1-11"] * 16)
    fields = beat_fields(f"0 3 1 {months} *")
    assert fields == ("0", "3", "1", "1,2,3,4,5,6,7,8,9,10,11", "*")
