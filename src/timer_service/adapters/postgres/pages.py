"""Pages of one tenant's timers, each found by its first timer and never by counting from the start."""

from datetime import UTC, datetime
from typing import Any, Final

from timer_service.adapters import rows
from timer_service.domain.callback import Sink
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_store import TimerQuery

_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)

# One index-ordered page for each state and sink, merged, so that no list ever sorts a tenant's whole history.
# Each begins at one place, which is all that the index is asked for: page 1,000 costs what page 1 costs.
_PAGES: Final = f"""
SELECT page.* FROM unnest($2::text[]) AS wanted(state){{each}}
CROSS JOIN LATERAL (
  SELECT {rows.TIMER_COLUMNS} FROM timer_schedules
  WHERE tenant_id = $1 AND timer_schedules.state = wanted.state
    AND (due_at, service_call_id) > ($3::text::timestamptz, $4::text) AND due_at < $5::text::timestamptz
    AND {{chosen}}
  ORDER BY due_at, service_call_id
  LIMIT $6) AS page
ORDER BY due_at, service_call_id
LIMIT $6
"""  # noqa: S608 - constants

# A page of one tenant's timers.
LIST: Final = _PAGES.format(
    each=" CROSS JOIN unnest($7::integer[]) AS fires(at)", chosen="timer_schedules.sink = fires.at"
)

# A page of those that belong to one request.
LIST_BY_CORRELATION: Final = _PAGES.format(
    each="", chosen="sink = ANY($7::integer[]) AND correlation_id = $8"
)


def page_of(query: TimerQuery) -> tuple[str, list[Any]]:
    """Return the statement for a page, and its parameters."""
    # No id is empty: what is due at `due_from` comes behind it.
    first = (query.due_from or _EARLIEST, "")
    due_at, service_call_id = max(first, query.after) if query.after else first
    parameters: list[Any] = [
        query.tenant_id,
        [query.state.value] if query.state else [state.value for state in TimerState],
        rows.text(due_at),
        service_call_id,
        # Exclusive; the very last millisecond is included if no bound was given.
        rows.text(query.due_before) if query.due_before else "infinity",
        query.limit,
        [sink.value for sink in Sink] if query.sink is None else [query.sink.value],
    ]
    if query.correlation_id is None:
        return LIST, parameters
    return LIST_BY_CORRELATION, [*parameters, query.correlation_id]
