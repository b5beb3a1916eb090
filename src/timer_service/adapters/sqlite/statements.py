"""The statements of the SQLite store about timers by key, by end and by number.

A batch goes into a statement as one JSON text. SQLite then works it off in one step, beside the interpreter;
with a step for each row the two would wait for each other at every row.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from timer_service.adapters import rows
from timer_service.domain.callback import Sink
from timer_service.domain.messages import epoch_ms
from timer_service.domain.timer import Timer, TimerState

COLUMNS: Final = (*rows.COLUMNS, "pending_due_ms")
"""The columns of a timer, in the order of `columns`."""
_CALL: Final = COLUMNS.index("service_call_id")
_A_FEW: Final = 8
"""Up to that many timers, columns that are read for nothing cost less than one more statement, of 43 KB."""

# The rows that a batch of commands is about, found by primary key.
LOAD: Final = f"""
SELECT {rows.of_table("t", rows.TIMER_COLUMNS)}
FROM json_each(?) AS wanted
CROSS JOIN timer_schedules AS t ON t.tenant_id = wanted.value ->> 0 AND t.service_call_id = wanted.value ->> 1
"""  # noqa: S608 - the column list is a constant


def json_text(values: Sequence[Any]) -> str:
    """Return texts, numbers or rows of them as SQLite unpacks them; `json` takes four times as long."""
    return msgspec.json.encode(values).decode()


def columns(timers: Collection[Timer]) -> list[list[Any]]:
    """Return timers as COLUMNS, column by column: the due time as a number, too, of what is pending."""
    pending = [timer.due_at if timer.state is TimerState.SCHEDULED else None for timer in timers]
    return [*rows.columns(timers), [None if due_at is None else epoch_ms(due_at) for due_at in pending]]


def save(timers: Collection[Timer]) -> tuple[str, dict[str, Any]]:
    """Return the statement that saves timers as the domain's rules left them, and its parameters."""
    # Most columns have one value in a whole batch, or none. Such a value is bound once: to read it out of the
    # JSON of each row would take two thirds of the time.
    given = columns(timers)
    few = 1 < len(timers) <= _A_FEW
    # Lists: of tuples made from generators, Python keeps the places of up to 2,000 of each length.
    each = [i for i, values in enumerate(given) if few or i == _CALL or values.count(values[0]) < len(values)]
    shared = {f"value{i}": values[0] for i, values in enumerate(given) if i not in each}
    differing = list(zip(*[given[i] for i in each], strict=True))
    return _save(tuple(each)), {"rows": json_text(differing), **shared}


@lru_cache(maxsize=64)
def _save(each: tuple[int, ...]) -> str:
    values = [f"value ->> {each.index(i)}" if i in each else f":value{i}" for i, _ in enumerate(COLUMNS)]
    return f"""
INSERT INTO timer_schedules ({", ".join(COLUMNS)})
SELECT {", ".join(values)} FROM json_each(:rows) WHERE true
ON CONFLICT (tenant_id, service_call_id) DO UPDATE SET {rows.changes_from("excluded")},
  pending_due_ms = excluded.pending_due_ms
"""  # noqa: S608 - constants


GET: Final = f"SELECT {rows.TIMER_COLUMNS} FROM timer_schedules WHERE tenant_id = ? AND service_call_id = ?"  # noqa: S608

# Retention, oldest first and bounded, so that it never holds up firing. What waits for delivery is kept.
PURGE: Final = """
DELETE FROM timer_schedules WHERE (tenant_id, service_call_id) IN (
  SELECT tenant_id, service_call_id FROM timer_schedules AS t
  WHERE state <> 'Scheduled' AND coalesce(reached_at, cancelled_at, expired_at) < ?
    AND (sink = 0 OR NOT EXISTS (
      SELECT 1 FROM callback_deliveries AS d
      WHERE d.tenant_id = t.tenant_id AND d.service_call_id = t.service_call_id AND d.state = 'Waiting'))
  ORDER BY coalesce(reached_at, cancelled_at, expired_at)
  LIMIT ?)
RETURNING tenant_id, service_call_id, sink
"""

# Apart from each other: beside a count SQLite would find the least by comparing all, at four times the cost.
_OVERDUE: Final = """
SELECT
  (SELECT count(*) FROM timer_schedules WHERE sink = 0 AND pending_due_ms <= :now_ms) AS overdue,
  (SELECT min(pending_due_ms) FROM timer_schedules WHERE sink = 0 AND pending_due_ms <= :now_ms) AS oldest,
  (SELECT min(pending_due_ms) FROM timer_schedules WHERE sink = 0 AND pending_due_ms > :now_ms) AS next
"""
# For health and metrics: what is overdue, and what comes next.
COUNT_OVERDUE: Final = f"""
SELECT sum(overdue), min(oldest), min(next) FROM (
  {" UNION ALL ".join(rows.for_sink(_OVERDUE, sink) for sink in Sink)})
"""  # noqa: S608

# A read that fixes the moment which the rest of its transaction sees.
FIX_THE_MOMENT: Final = "SELECT 1 FROM timer_migrations LIMIT 1"

_PENDING: Final = """
SELECT count(*) AS pending FROM timer_schedules INDEXED BY timer_schedules_due
WHERE sink = 0 AND pending_due_ms IS NOT NULL
"""
# Once; from then on the changes are counted.
COUNT_PENDING: Final = f"""
SELECT sum(pending) FROM (
  {" UNION ALL ".join(rows.for_sink(_PENDING, sink) for sink in Sink)})
"""  # noqa: S608
