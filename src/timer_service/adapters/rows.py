"""Timers and epochs as rows and back: the columns, once for every database."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Protocol

from timer_client.wire import format_time
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.messages import (
    EPOCH,
    CorrelationId,
    Position,
    ServiceCallId,
    TenantId,
    Trace,
    epoch_ms,
)
from timer_service.domain.timer import Timer, TimerState

COLUMNS: Final[dict[str, type]] = {
    "tenant_id": str,
    "service_call_id": str,
    "state": str,
    "due_at": datetime,
    "generation": int,
    "registered_at": datetime,
    "correlation_id": str,
    "reached_at": datetime,
    "cancelled_at": datetime,
    "stream_created_us": int,
    "stream_sequence": int,
    "traceparent": str,
    "tracestate": str,
    "due_stream_created_us": int,
    "due_stream_sequence": int,
    "correlation_stream_created_us": int,
    "correlation_stream_sequence": int,
    "trace_stream_created_us": int,
    "trace_stream_sequence": int,
    "sink": int,
    "callback_revision": int,
    "first_stream_created_us": int,
    "first_stream_sequence": int,
    "first_if_absent": int,
    "expires_after_ms": int,
    "expired_at": datetime,
    "verdict": str,
    "fingerprint": str,
}
"""The columns of a timer, in the order of `columns` and `timer`, and what each holds."""
TIMER_COLUMNS: Final = ", ".join(COLUMNS)
DUE_COLUMNS: Final = (
    "tenant_id, service_call_id, due_at, generation, correlation_id, traceparent, tracestate, "
    "expires_after_ms, verdict"
)
"""What a statement lists of a due timer, in the order of `due_timer`."""
EPOCH_COLUMNS: Final = "epoch, stream_created_us, after_sequence, after_us, last_sequence, last_stored_us"
"""What a statement lists of an epoch, in the order of `StreamEpoch`."""
_FIXED: Final = frozenset({"tenant_id", "service_call_id", "registered_at"})


class Row(Protocol):
    """What a driver returns for a row."""

    def __getitem__(self, index: int, /) -> Any:
        """Return the value of a column."""
        ...


def of_table(alias: str, columns: str) -> str:
    """Return columns as those of one of several tables."""
    return ", ".join(f"{alias}.{column}" for column in columns.split(", "))


def changes_from(source: str) -> str:
    """Return the assignments of an update: of every column that a command may change."""
    return ", ".join(f"{column} = {source}.{column}" for column in COLUMNS if column not in _FIXED)


def for_sink(sql: str, sink: Sink) -> str:
    """Return a statement about timers that fire on the bus as the same about those of a sink."""
    if sink is Sink.BUS:
        return sql
    return sql.replace("sink = 0", "sink = 1")


text: Final = format_time
"""A moment as both databases read it, to the millisecond; the order of these texts is that of time."""

text_of_batch: Final = lru_cache(maxsize=8)(text)
"""All that a batch creates is registered at one moment."""


def text_ms(moment: str) -> int:
    """Return the milliseconds since 1970 of such a text."""
    return epoch_ms(datetime.fromisoformat(moment))


def moment(value: str | int | datetime | None) -> datetime | None:
    """Return the moment of a column: SQLite keeps it as text or as a number, PostgreSQL as what it is."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return EPOCH + timedelta(milliseconds=value) if isinstance(value, int) else value


moment_of_burst: Final = lru_cache(maxsize=8)(moment)
"""Timers of a burst are due at one moment, and what is made of it later is known by the same object."""


def columns(timers: Collection[Timer]) -> list[list[Any]]:
    """Return timers as COLUMNS, column by column: both databases take them so. It is quicker than rows."""
    newest = [timer.position for timer in timers]
    traces = [timer.trace for timer in timers]
    return [
        [timer.tenant_id for timer in timers],
        [timer.service_call_id for timer in timers],
        # Which is its value, and much quicker than to ask the enumeration for that.
        [str(timer.state) for timer in timers],
        [text(timer.due_at) if timer.due_at else None for timer in timers],
        [timer.generation for timer in timers],
        [text_of_batch(timer.registered_at) for timer in timers],
        [timer.correlation_id for timer in timers],
        [text(timer.reached_at) if timer.reached_at else None for timer in timers],
        [text(timer.cancelled_at) if timer.cancelled_at else None for timer in timers],
        [position.stream_created_us for position in newest],
        [position.sequence for position in newest],
        [trace.parent if trace else None for trace in traces],
        [trace.state if trace else None for trace in traces],
        *_where_older([timer.due_position for timer in timers], newest),
        *_where_older([timer.correlation_position for timer in timers], newest),
        *_where_older([timer.trace_position for timer in timers], newest),
        [int(timer.sink) for timer in timers],
        [timer.callback_revision for timer in timers],
        *_where_older([timer.first_position for timer in timers], newest),
        [1 if timer.first_if_absent else None for timer in timers],
        [timer.expires_after_ms for timer in timers],
        [text(timer.expired_at) if timer.expired_at else None for timer in timers],
        [str(timer.verdict) if timer.verdict else None for timer in timers],
        [timer.fingerprint for timer in timers],
    ]


def timer(row: Row) -> Timer:
    """Return the timer of a row that holds COLUMNS."""
    position = Position(row[9], row[10])
    registered_at = moment(row[5])
    assert registered_at is not None
    return Timer(
        tenant_id=TenantId(row[0]),
        service_call_id=ServiceCallId(row[1]),
        state=TimerState(row[2]),
        due_at=moment(row[3]),
        generation=row[4],
        registered_at=registered_at,
        correlation_id=None if row[6] is None else CorrelationId(row[6]),
        reached_at=moment(row[7]),
        cancelled_at=moment(row[8]),
        position=position,
        trace=_trace(row[11], row[12]),
        due_position=None if row[3] is None else _or_newest(row[13], row[14], position),
        correlation_position=None if row[6] is None else _or_newest(row[15], row[16], position),
        trace_position=None if row[11] is None else _or_newest(row[17], row[18], position),
        sink=Sink(row[19]),
        callback_revision=row[20],
        first_position=None if row[21] is None else Position(row[21], row[22]),
        first_if_absent=row[23] is not None,
        expires_after_ms=row[24],
        expired_at=moment(row[25]),
        verdict=_state(row[26]),
        fingerprint=row[27],
    )


def due_timer(row: Row) -> DueTimer:
    """Return the due timer of a row that holds DUE_COLUMNS."""
    due_at = moment_of_burst(row[2])
    assert due_at is not None
    trace = None if row[5] is None else Trace(row[5], row[6])
    verdict = None if row[8] is None else TimerState(row[8])
    return DueTimer(row[0], row[1], due_at, row[3], row[4], trace, row[7], verdict)


def epoch_row(epoch: StreamEpoch) -> tuple[int, ...]:
    """Return an epoch as EPOCH_COLUMNS."""
    return (
        epoch.number,
        epoch.stream_created_us,
        epoch.after_sequence,
        epoch.after_us,
        epoch.last_sequence,
        epoch.last_stored_us,
    )


def _where_older(
    positions: Iterable[Position | None], newest: Iterable[Position]
) -> tuple[list[int | None], list[int | None]]:
    """Return the columns of the commands that have set a value: nothing where it is the timer's newest."""
    # Mostly the very same object, which is cheaper to see than that two are equal.
    older = [
        None if position is None or position is last or position == last else position
        for position, last in zip(positions, newest, strict=True)
    ]
    return (
        [None if position is None else position.stream_created_us for position in older],
        [None if position is None else position.sequence for position in older],
    )


def _or_newest(stream_created_us: int | None, sequence: int | None, newest: Position) -> Position:
    return newest if stream_created_us is None or sequence is None else Position(stream_created_us, sequence)


def _state(value: str | None) -> TimerState | None:
    return None if value is None else TimerState(value)


def _trace(parent: str | None, state: str | None) -> Trace | None:
    return None if parent is None else Trace(parent, state)
