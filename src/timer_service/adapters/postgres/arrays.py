"""Timers and keys column by column, as PostgreSQL's `unnest` takes them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from timer_service.adapters import rows

# Times come as text: the driver would turn the very first millisecond of the year 1 into -infinity.
_CASTS: Final = {str: "text[]", int: "bigint[]", datetime: "text[]::timestamptz[]"}

GIVEN: Final = (
    f"unnest({', '.join(f'${n}::{_CASTS[kind]}' for n, kind in enumerate(rows.COLUMNS.values(), start=1))})"
)
"""Timers that a statement brings along, as `rows.columns` returns them."""


def transposed(values: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return rows of values column by column."""
    return [list(column) for column in zip(*values, strict=True)] or [[] for _ in range(width)]
