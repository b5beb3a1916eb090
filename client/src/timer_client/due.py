"""What a caller may say about time: spans and moments with a zone, never a bare number."""

from datetime import datetime, timedelta
from typing import Final

from timer_client import wire

_LONGEST: Final = timedelta(days=365_250)
_HOW = "give a timedelta, such as timedelta(hours=3), or a datetime with a zone, such as datetime.now(UTC)"


def moment(name: str, value: object) -> datetime:
    """Return a moment in UTC, rounded up to the millisecond; raise TypeError or ValueError otherwise."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime with a zone, such as datetime.now(UTC) (got {value!r})")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(
            f"{name} must have a time zone, a guess would fire at the wrong time:"
            f" write datetime.now(UTC) or {name}.replace(tzinfo=UTC) (got {value!r})"
        )
    # The wire form is the strict reader's own, so that rounding up happens in one place.
    return wire.parse_time(value.isoformat())


def span_ms(name: str, value: object) -> int:
    """Return a span in milliseconds, rounded up; raise TypeError or ValueError otherwise."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a timedelta, such as timedelta(seconds=90) (got {value!r})")
    if value < timedelta():
        raise ValueError(f"{name} must not be negative (got {value!r})")
    return -(-value // timedelta(milliseconds=1))


def wait_ms(name: str, value: object) -> int:
    """Return a span that something may wait for: its end must be a moment that can be written down."""
    if isinstance(value, timedelta) and value > _LONGEST:
        raise ValueError(f"{name} must not be longer than 1,000 years (got {value!r})")
    return span_ms(name, value)


def _limited_ms(name: str, value: object) -> int:
    milliseconds = span_ms(name, value)
    if milliseconds > wire.MAX_SPAN_MS:
        raise ValueError(f"{name} must not be longer than 10 years: give a moment instead (got {value!r})")
    return milliseconds


def wanted(due: object, *, if_absent: bool, expires_after: timedelta | None) -> wire.Wanted:
    """Return what is wanted of a timer, as the wire has it; raise TypeError or ValueError for wrong times."""
    if not isinstance(due, datetime | timedelta):
        raise TypeError(f"due: {_HOW} (got {due!r})")
    is_span = isinstance(due, timedelta)
    return wire.Wanted.model_construct(
        due_at=None if is_span else moment("due", due),
        delay_ms=_limited_ms("due", due) if is_span else None,
        if_absent=if_absent or None,
        expires_after_ms=None if expires_after is None else _limited_ms("expires_after", expires_after),
    )
