"""Times on the wire: always with a zone, never early."""

from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timer_client.wire import TIME_RULE, format_time, parse_time


def utc(*parts: int, ms: int = 0) -> datetime:
    return datetime(*parts, tzinfo=UTC) + timedelta(milliseconds=ms)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-12-01T09:00:00Z", utc(2026, 12, 1, 9)),
        ("2026-12-01T09:00:00z", utc(2026, 12, 1, 9)),
        ("2026-12-01t09:00:00Z", utc(2026, 12, 1, 9)),
        ("2026-12-01T09:00Z", utc(2026, 12, 1, 9)),
        ("2026-12-01T09:00:00+00:00", utc(2026, 12, 1, 9)),
        ("2026-12-01T09:00:00-00:00", utc(2026, 12, 1, 9)),
        ("2026-12-01T09:00:00+01:00", utc(2026, 12, 1, 8)),
        ("2026-12-01T09:00:00+0100", utc(2026, 12, 1, 8)),
        ("2026-12-01T09:00:00+01", utc(2026, 12, 1, 8)),
        ("2026-12-01T09:00+01:00", utc(2026, 12, 1, 8)),
        ("2026-12-01T09:00:00-05:30", utc(2026, 12, 1, 14, 30)),
        ("2026-12-01T09:00:00+23:59", utc(2026, 11, 30, 9, 1)),
        ("2026-12-01T09:00:00-23:59", utc(2026, 12, 2, 8, 59)),
        ("2026-01-01T00:30:00+01:00", utc(2025, 12, 31, 23, 30)),
        ("2024-02-29T00:00:00Z", utc(2024, 2, 29)),
        ("1969-12-31T23:59:59Z", utc(1969, 12, 31, 23, 59, 59)),
    ],
)
def test_a_time_with_a_zone_is_read_as_utc(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment
    assert parse_time(text).tzinfo is UTC


@pytest.mark.parametrize(
    ("fraction", "milliseconds"),
    [
        (".5", 500),
        (",5", 500),
        (".05", 50),
        (".123", 123),
        (".123000", 123),
        (".1230000000000000000000000", 123),
        (".1231", 124),
        (".123000001", 124),
        (".1230000000000000000000001", 124),
        (".0000001", 1),
        (".0", 0),
        (".999", 999),
        (".9990", 999),
        (".9991", 1000),
        (".999999999", 1000),
    ],
)
def test_a_time_finer_than_a_millisecond_is_rounded_up(fraction: str, milliseconds: int) -> None:
    assert parse_time(f"2026-12-01T09:00:00{fraction}Z") == utc(2026, 12, 1, 9, ms=milliseconds)


def test_rounding_up_carries_into_the_next_year() -> None:
    assert parse_time("2026-12-31T23:59:59.9995Z") == utc(2027, 1, 1)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0001-01-01T00:00:00Z", utc(1, 1, 1)),
        ("0001-01-01T01:00:00+01:00", utc(1, 1, 1)),
        ("9999-12-31T23:59:59.999Z", utc(9999, 12, 31, 23, 59, 59, ms=999)),
        ("9999-12-31T22:59:59.998001-01:00", utc(9999, 12, 31, 23, 59, 59, ms=999)),
    ],
)
def test_the_first_and_the_last_moment_are_accepted(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment


REFUSED = {
    "no zone": "2026-12-01T09:00:00",
    "no zone, with a fraction": "2026-12-01T09:00:00.000",
    "no time": "2026-12-01",
    "no time, with a zone": "2026-12-01Z",
    "hour alone": "2026-12-01T09Z",
    "a blank for T": "2026-12-01 09:00:00Z",
    "a blank before": " 2026-12-01T09:00:00Z",
    "a line break behind": "2026-12-01T09:00:00Z\n",
    "a blank before the zone": "2026-12-01T09:00:00 Z",
    "the name of a zone": "2026-12-01T09:00:00 Europe/Berlin",
    "zone in brackets": "2026-12-01T09:00:00+01:00[Europe/Berlin]",
    "both kinds of zone": "2026-12-01T09:00:00Z+01:00",
    "basic form": "20261201T090000Z",
    "week date": "2026-W49-2T09:00:00Z",
    "day of the year": "2026-335T09:00:00Z",
    "two digits of a year": "26-12-01T09:00:00Z",
    "five digits of a year": "12026-12-01T09:00:00Z",
    "sign before the year": "+2026-12-01T09:00:00Z",
    "one digit": "2026-12-1T09:00:00Z",
    "month 0": "2026-00-01T09:00:00Z",
    "month 13": "2026-13-01T09:00:00Z",
    "day 0": "2026-12-00T09:00:00Z",
    "no leap year": "2026-02-29T09:00:00Z",
    "hour 24": "2026-12-01T24:00:00Z",
    "minute 60": "2026-12-01T09:60:00Z",
    "leap second": "2026-12-31T23:59:60Z",
    "fraction without digits": "2026-12-01T09:00:00.Z",
    "fraction of a minute": "2026-12-01T09:00.5Z",
    "offset of 24 hours": "2026-12-01T09:00:00+24:00",
    "offset of 60 minutes": "2026-12-01T09:00:00+01:60",
    "offset with one digit": "2026-12-01T09:00:00+1",
    "offset with three digits": "2026-12-01T09:00:00+100",
    "offset that ends in a colon": "2026-12-01T09:00:00+01:",
    "offset with seconds": "2026-12-01T09:00:00+01:00:00",
    "other digits": "２０２６-12-01T09:00:00Z",
    "another minus": "2026-12-01T09:00:00\N{MINUS SIGN}01:00",
    "empty": "",
    "now": "now",
    "a number": "1796115600000",
    "year 0": "0000-12-31T23:59:59Z",
    "before year 1 in UTC": "0001-01-01T00:59:59+01:00",
    "after year 9999 in UTC": "9999-12-31T23:00:00-01:00",
    "after year 9999 when rounded up": "9999-12-31T23:59:59.9991Z",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="must be an ISO 8601 date and time") as caught:
        parse_time(text)

    assert TIME_RULE in str(caught.value)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (utc(2026, 12, 1, 9), "2026-12-01T09:00:00.000Z"),
        (utc(2026, 12, 1, 9, ms=7), "2026-12-01T09:00:00.007Z"),
        (utc(1, 1, 1), "0001-01-01T00:00:00.000Z"),
        (utc(9999, 12, 31, 23, 59, 59, ms=999), "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_is_written_with_three_decimals_and_z(moment: datetime, text: str) -> None:
    assert format_time(moment) == text
    assert parse_time(text) == moment


# Against arithmetic on whole numbers

_DAY_S = 86_400
_BEGIN = date(1, 1, 1).toordinal() * _DAY_S
_END = (date(9999, 12, 31).toordinal() + 1) * _DAY_S
_fractions = st.one_of(
    st.just(""), st.text("09", min_size=1, max_size=8), st.from_regex(r"[0-9]{1,12}", fullmatch=True)
)


def _expected(day: date, second_of_day: int, fraction: str, offset_min: int) -> datetime | None:
    exact = (
        day.toordinal() * _DAY_S
        + second_of_day
        - offset_min * 60
        + Fraction(int(fraction or 0), 10 ** len(fraction))
    )
    milliseconds = ceil(exact * 1000)
    if not _BEGIN * 1000 <= milliseconds < _END * 1000:
        return None
    return utc(1, 1, 1) + timedelta(milliseconds=milliseconds - _BEGIN * 1000)


@given(
    day=st.one_of(st.dates(), st.sampled_from([date.min, date.max])),
    second_of_day=st.one_of(st.integers(0, _DAY_S - 1), st.sampled_from([0, _DAY_S - 1])),
    fraction=_fractions,
    offset_min=st.integers(-1439, 1439),
)
@example(date.max, _DAY_S - 1, "9990001", 0)
@example(date.max, _DAY_S - 1, "999", 0)
@example(date.min, 0, "", 1)
@example(date.min, 59, "9999", 1)
def test_reading_agrees_with_exact_arithmetic(
    day: date, second_of_day: int, fraction: str, offset_min: int
) -> None:
    hours, rest = divmod(second_of_day, 3600)
    sign, span = ("-" if offset_min < 0 else "+"), abs(offset_min)
    text = (
        f"{day.isoformat()}T{hours:02}:{rest // 60:02}:{rest % 60:02}{'.' if fraction else ''}{fraction}"
        f"{sign}{span // 60:02}:{span % 60:02}"
    )
    expected = _expected(day, second_of_day, fraction, offset_min)

    if expected is None:
        with pytest.raises(ValueError, match="must be"):
            parse_time(text)
    else:
        assert parse_time(text) == expected
        assert parse_time(format_time(expected)) == expected


def _read(text: str) -> datetime | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


@given(st.from_regex(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:.,]{5,14}[Zz+-][0-9:]*", fullmatch=True))
def test_whatever_is_read_is_a_whole_millisecond_in_utc(text: str) -> None:
    moment = _read(text)

    assert moment is None or (moment.tzinfo, moment.microsecond % 1000) == (UTC, 0)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_is_written_as_iso_8601_has_it(moment: datetime) -> None:
    assert format_time(moment) == moment.isoformat("T", "milliseconds").removesuffix("+00:00") + "Z"
