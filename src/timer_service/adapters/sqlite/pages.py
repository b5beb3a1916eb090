"""Pages of one tenant's timers, each found by its first timer and never by counting from the start."""

from itertools import product
from typing import Any, Final

from timer_service.adapters.rows import TIMER_COLUMNS, for_sink, text, text_ms
from timer_service.domain.callback import Sink
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_store import TimerQuery

# A page of one tenant's pending timers, in index order. One lower bound, of due time and id together: beside
# a second one SQLite would seek by that and only filter by this, and read all pages before this one.
LIST_PENDING: Final = f"""
SELECT {TIMER_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_pending
WHERE sink = 0 AND tenant_id = :tenant
  AND (pending_due_ms, service_call_id) > (:after_ms, :after_id) AND pending_due_ms < :before_ms
ORDER BY pending_due_ms, service_call_id
LIMIT :limit
"""  # noqa: S608 - the column list is a constant

# A page of those in another state.
LIST_OVER: Final = f"""
SELECT {TIMER_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_over
WHERE tenant_id = :tenant AND state = :state AND state <> 'Scheduled' AND sink = :sink
  AND (due_at, service_call_id) > (:after_due, :after_id) AND due_at < :due_before
ORDER BY due_at, service_call_id
LIMIT :limit
"""  # noqa: S608 - the column list is a constant

# A page of the timers of one request; few of them, so that the state is only a filter.
LIST_BY_CORRELATION: Final = f"""
SELECT {TIMER_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_by_correlation
WHERE correlation_id = :correlation AND tenant_id = :tenant
  AND (due_at, service_call_id) > (:after_due, :after_id) AND due_at < :due_before
  AND (:state IS NULL OR state = :state) AND (:sink IS NULL OR sink = :sink)
ORDER BY due_at, service_call_id
LIMIT :limit
"""  # noqa: S608 - the column list is a constant

_BEFORE_ALL: Final = ""
_AFTER_ALL: Final = "~"
_BEFORE_ALL_MS: Final = -(2**63)
_AFTER_ALL_MS: Final = 2**63 - 1


def pages_of(query: TimerQuery) -> list[tuple[str, dict[str, Any]]]:
    """Return the statements whose results, merged, are the page, each with its parameters."""
    due_from = text(query.due_from) if query.due_from else _BEFORE_ALL
    after_due, after_id = (text(query.after[0]), query.after[1]) if query.after else (_BEFORE_ALL, "")
    # No id is empty: so the cursor "before the first of this due time" includes all of it.
    lower_due, lower_id = max((due_from, ""), (after_due, str(after_id)))
    parameters = {
        "tenant": query.tenant_id,
        "after_due": lower_due,
        "after_id": lower_id,
        "due_before": text(query.due_before) if query.due_before else _AFTER_ALL,
        "limit": query.limit,
    }
    if query.correlation_id is not None:
        state = query.state.value if query.state else None
        of_request = {"correlation": query.correlation_id, "state": state, "sink": query.sink}
        return [(LIST_BY_CORRELATION, {**parameters, **of_request})]
    states = [query.state] if query.state else list(TimerState)
    sinks = list(Sink) if query.sink is None else [query.sink]
    return [_page_of(state, sink, parameters) for state, sink in product(states, sinks)]


def _page_of(state: TimerState, sink: Sink, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if state is not TimerState.SCHEDULED:
        return LIST_OVER, {**parameters, "state": state.value, "sink": sink.value}
    after, before = parameters["after_due"], parameters["due_before"]
    bounds = {
        "after_ms": _BEFORE_ALL_MS if after == _BEFORE_ALL else text_ms(after),
        "before_ms": _AFTER_ALL_MS if before == _AFTER_ALL else text_ms(before),
    }
    return for_sink(LIST_PENDING, sink), {**parameters, **bounds}
