"""What a caller may say about time: spans and moments with a zone, never a bare number."""

from datetime import datetime, timedelta

from timer_client import wire

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


def check_due(value: object) -> None:
    """Raise TypeError for what is neither a span nor a moment."""
    if not isinstance(value, datetime | timedelta):
        raise TypeError(f"due: {_HOW} (got {value!r})")
