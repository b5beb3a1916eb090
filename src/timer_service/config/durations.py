"""Durations as people write them, in settings and on the command line."""

import re
from datetime import timedelta
from typing import Final

MAX_DURATION_LENGTH: Final = 64
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_duration(text: str) -> timedelta:
    """Read a duration such as 10s, 1h30m or 500ms; raise ValueError otherwise."""
    if len(text) > MAX_DURATION_LENGTH:  # The search below takes the square of the length.
        raise ValueError(f"is too long a duration (got {text[:MAX_DURATION_LENGTH]!r}…)")
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"must be a duration such as 10s, 1h30m or 500ms (got {text!r})")
    try:
        return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
    except OverflowError as error:
        raise ValueError(f"is too long a duration (got {text!r})") from error
