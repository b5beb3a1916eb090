"""Lists of timers with callbacks as statements, once for every database."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from timer_service.adapters.rows import TIMER_COLUMNS, of_table
from timer_service.domain.callback_status import OF_DELIVERY, OF_TIMER, CallbackStatus
from timer_service.domain.delivery import DeliveryState
from timer_service.domain.timer import TimerState
from timer_service.ports.callback_list import CallbackQuery, ListOrder

_COLUMNS: Final = {ListOrder.CREATED: "registered_at", ListOrder.DUE: "due_at"}
_SAME_KEY: Final = "d.tenant_id = t.tenant_id AND d.service_call_id = t.service_call_id"


@dataclass(frozen=True, slots=True)
class ListDialect:
    """What one database writes in its own way."""

    tenant: str
    """The parameters: whose timers, up to which place of the list, where the page begins, how long it is."""
    last: str
    offset: str
    limit: str
    created: str = ""
    """Which index is to be used for each part, where the database has to be told."""
    pending: str = ""
    over: str = ""
    delivered: str = ""
    join: str = "JOIN"
    """Joins in the order in which the tables are named, where the database has to be told."""
    is_pending: str = "t.state = 'Scheduled'"
    pending_due: str = "due_at"
    """What the index of pending timers holds of the due time."""


def page_statement(query: CallbackQuery, dialect: ListDialect, *, is_long: bool) -> str:
    """Return the statement that reads a page of a list, which may be too long to be sorted."""
    column, way = _COLUMNS[query.order], "DESC" if query.newest_first else "ASC"
    parts = [
        f"SELECT * FROM (SELECT t.service_call_id, t.{column} AS place {part} "  # noqa: S608 - constants
        f"ORDER BY t.{_of_index(part, column, dialect)} {way}, t.service_call_id {way} "
        f"LIMIT {dialect.last}) AS part"
        for part in _parts(query, dialect, is_long=is_long)
    ]
    return f"""
SELECT {of_table("t", TIMER_COLUMNS)} FROM (
  SELECT service_call_id, place FROM ({" UNION ALL ".join(parts)}) AS parts
  ORDER BY place {way}, service_call_id {way} LIMIT {dialect.limit} OFFSET {dialect.offset}) AS page
{dialect.join} timer_schedules AS t
  ON t.tenant_id = {dialect.tenant} AND t.service_call_id = page.service_call_id
ORDER BY t.{column} {way}, t.service_call_id {way}
"""  # noqa: S608


def count_statement(query: CallbackQuery, dialect: ListDialect) -> str:
    """Return the statement that counts the list, each part of it up to the last place."""
    if query.status is None:
        parts = [_created(dialect)]
    else:
        parts = [_deliveries(state, dialect) for state in _delivery_states(query.status)]
        parts += [_timers(state, dialect) for state in _timer_states(query.status)]
    each = [f"SELECT 1 FROM (SELECT 1 {part} LIMIT {dialect.last}) AS part" for part in parts]  # noqa: S608
    return f"SELECT count(*) FROM ({' UNION ALL '.join(each)}) AS parts"  # noqa: S608


def _parts(query: CallbackQuery, dialect: ListDialect, *, is_long: bool) -> Sequence[str]:
    """Return where the timers are found, each part in the order of an index, or short enough to be sorted."""
    if query.status is None:
        by_state = [_timers(state, dialect) for state in TimerState]
        return [_created(dialect)] if query.order is ListOrder.CREATED else by_state
    timers, deliveries = _timer_states(query.status), _delivery_states(query.status)
    if is_long:
        return [_walk(state, None, query, dialect) for state in timers] + [
            _walk(TimerState.REACHED, state, query, dialect) for state in deliveries
        ]
    found = [_joined(_deliveries(state, dialect), "timer_schedules AS t", dialect) for state in deliveries]
    return [*found, *(_timers(state, dialect) for state in timers)]


def _walk(
    state: TimerState, delivery: DeliveryState | None, query: CallbackQuery, dialect: ListDialect
) -> str:
    """Return a way along the whole list that leaves out what is in another state: many are in this one."""
    part = _timers(state, dialect)
    if query.order is ListOrder.CREATED:
        part = f"{_created(dialect)} AND t.state = '{state}'"
    if delivery is None:
        return part
    return f"{_joined(part, 'callback_deliveries AS d', dialect)} AND d.state = '{delivery}'"


def _of_index(part: str, column: str, dialect: ListDialect) -> str:
    """Return the column by which an index has this part in order."""
    return dialect.pending_due if column == "due_at" and dialect.is_pending in part else column


def _created(dialect: ListDialect) -> str:
    return f"FROM timer_schedules AS t {dialect.created} WHERE t.tenant_id = {dialect.tenant} AND t.sink = 1"


def _timers(state: TimerState, dialect: ListDialect) -> str:
    is_pending = state is TimerState.SCHEDULED
    index = dialect.pending if is_pending else dialect.over
    chosen = dialect.is_pending if is_pending else f"t.state = '{state}' AND t.state <> 'Scheduled'"
    tables = f"FROM timer_schedules AS t {index}"
    return f"{tables} WHERE t.tenant_id = {dialect.tenant} AND t.sink = 1 AND {chosen}"


def _deliveries(state: DeliveryState, dialect: ListDialect) -> str:
    tables = f"FROM callback_deliveries AS d {dialect.delivered}"
    return f"{tables} WHERE d.tenant_id = {dialect.tenant} AND d.state = '{state}'"


def _joined(part: str, table: str, dialect: ListDialect) -> str:
    tables, _, chosen = part.partition(" WHERE ")
    return f"{tables} {dialect.join} {table} ON {_SAME_KEY} WHERE {chosen}"


def _delivery_states(status: CallbackStatus) -> list[DeliveryState]:
    return [state for state, found in OF_DELIVERY.items() if found is status]


def _timer_states(status: CallbackStatus) -> list[TimerState]:
    return [state for state, found in OF_TIMER.items() if found is status]
