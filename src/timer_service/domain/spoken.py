"""Spans and moments in words, as a person would say them."""

from datetime import UTC, datetime, timedelta
from typing import Final

_MS: Final = timedelta(milliseconds=1)
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span_text(span: timedelta) -> str:
    """Return a span as precisely as its length deserves: 2 h 13 min, 41 s, 4 ms."""
    ms = abs(span) // _MS
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 10_000:
        return f"{ms / 1_000:.1f}".rstrip("0").removesuffix(".") + " s"
    return whole_span_text(span)


def whole_span_text(span: timedelta) -> str:
    """Return a span in its two largest units, and nothing below a second: 2 h 13 min, 41 s, 0 s."""
    seconds, parts = abs(span) // timedelta(seconds=1), list[str]()
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count:,} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part) or "0 s"


def moment_text(moment: datetime, now: datetime) -> str:
    """Return a moment in UTC, without its date if that is today's."""
    moment, now = moment.astimezone(UTC), now.astimezone(UTC)
    shown = "%H:%M:%S UTC" if moment.date() == now.date() else "%Y-%m-%d %H:%M:%S UTC"
    # strftime does not fill up years before 1000.
    return moment.strftime(shown.replace("%Y", f"{moment.year:04}"))


def outage_text(part: str, since: datetime | None, now: datetime) -> str:
    """Return since when the broker or the store has been away, without what only an operator may know."""
    if since is not None:
        away = "the broker has been away" if part == "broker" else "the store has taken no change"
        return f"{away} since {moment_text(since, now)}"
    return "the broker is away" if part == "broker" else "the store takes no change"


def count_text(count: int, one: str, many: str = "") -> str:
    """Return how many there are: 1 timer, 12,000 timers."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
