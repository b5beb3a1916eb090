"""Timers as rows and back."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg

from timer_service.domain.messages import CorrelationId, Position, ServiceCallId, TenantId, Trace
from timer_service.domain.timer import DueTimer, Timer, TimerState

COLUMNS: Final = (
    "tenant_id, service_call_id, state, due_at, generation, registered_at, correlation_id, "
    "reached_at, cancelled_at, stream_created_us, stream_sequence, traceparent, tracestate, "
    "due_stream_created_us, due_stream_sequence, correlation_stream_created_us, correlation_stream_sequence, "
    "trace_stream_created_us, trace_stream_sequence"
)
DUE_COLUMNS: Final = "tenant_id, service_call_id, due_at, generation, correlation_id, traceparent, tracestate"

# Timers that a statement brings along, column by column. Times come as text: the driver would turn the very
# first millisecond of the year 1 into -infinity.
GIVEN: Final = """unnest(
    $1::text[], $2::text[], $3::text[], $4::text[]::timestamptz[], $5::integer[], $6::text[]::timestamptz[],
    $7::text[], $8::text[]::timestamptz[], $9::text[]::timestamptz[], $10::bigint[], $11::bigint[],
    $12::text[], $13::text[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[],
    $19::bigint[])"""


def text(moment: datetime) -> str:
    """Return a moment as the server reads it, to the millisecond."""
    return moment.isoformat(timespec="milliseconds")[:23] + "Z"


def columns(timers: Iterable[Timer]) -> list[list[Any]]:
    """Return timers column by column, as GIVEN takes them."""
    return [list(column) for column in zip(*map(_row, timers), strict=True)]


def transposed(values: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return rows of values column by column, as `unnest` takes them."""
    return [list(column) for column in zip(*values, strict=True)] or [[] for _ in range(width)]


def timer(row: asyncpg.Record) -> Timer:
    """Return the timer of a row that holds COLUMNS."""
    position = Position(row[9], row[10])
    return Timer(
        tenant_id=TenantId(row[0]),
        service_call_id=ServiceCallId(row[1]),
        state=TimerState(row[2]),
        due_at=row[3],
        generation=row[4],
        registered_at=row[5],
        correlation_id=None if row[6] is None else CorrelationId(row[6]),
        reached_at=row[7],
        cancelled_at=row[8],
        position=position,
        trace=_trace(row[11], row[12]),
        due_position=None if row[3] is None else _or_newest(row[13], row[14], position),
        correlation_position=None if row[6] is None else _or_newest(row[15], row[16], position),
        trace_position=None if row[11] is None else _or_newest(row[17], row[18], position),
    )


def due_timer(row: asyncpg.Record) -> DueTimer:
    """Return the due timer of a row that holds DUE_COLUMNS."""
    return DueTimer(
        tenant_id=TenantId(row[0]),
        service_call_id=ServiceCallId(row[1]),
        due_at=row[2],
        generation=row[3],
        correlation_id=None if row[4] is None else CorrelationId(row[4]),
        trace=_trace(row[5], row[6]),
    )


def _row(timer: Timer) -> tuple[Any, ...]:
    return (
        timer.tenant_id,
        timer.service_call_id,
        timer.state.value,
        text(timer.due_at) if timer.due_at else None,
        timer.generation,
        text(timer.registered_at),
        timer.correlation_id,
        text(timer.reached_at) if timer.reached_at else None,
        text(timer.cancelled_at) if timer.cancelled_at else None,
        timer.position.stream_created_us,
        timer.position.sequence,
        timer.trace.parent if timer.trace else None,
        timer.trace.state if timer.trace else None,
        *_where_older(timer.due_position, timer.position),
        *_where_older(timer.correlation_position, timer.position),
        *_where_older(timer.trace_position, timer.position),
    )


def _where_older(position: Position | None, newest: Position) -> tuple[int | None, int | None]:
    """Return the columns of the command that has set a value: nothing where it is the row's newest."""
    if position is None or position == newest:
        return None, None
    return position.stream_created_us, position.sequence


def _or_newest(stream_created_us: int | None, sequence: int | None, newest: Position) -> Position:
    return newest if stream_created_us is None or sequence is None else Position(stream_created_us, sequence)


def _trace(parent: str | None, state: str | None) -> Trace | None:
    return None if parent is None else Trace(parent, state)
