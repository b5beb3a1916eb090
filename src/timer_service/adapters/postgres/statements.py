"""The statements of the PostgreSQL store about timers by key, by end and by number."""

from typing import Final

from timer_service.adapters import rows
from timer_service.adapters.postgres import arrays
from timer_service.adapters.postgres.schema import LOCK_KEY
from timer_service.domain.callback import Sink

# The name of a timer's advisory lock; two timers with one name only make a request come again.
FIRING: Final = f"hashtextextended(tenant_id || '/' || service_call_id, {LOCK_KEY})"

# The database's own clock, truncated to the millisecond like ours.
CLOCK: Final = "date_trunc('milliseconds', clock_timestamp())"

# New timers; what another instance has inserted meanwhile is not touched and not returned.
INSERT: Final = f"""
INSERT INTO timer_schedules ({rows.TIMER_COLUMNS})
SELECT * FROM {arrays.GIVEN}
ON CONFLICT DO NOTHING
RETURNING tenant_id, service_call_id
"""  # noqa: S608 - constants

# The rows that a batch of commands is about, found by primary key.
LOAD: Final = f"""
SELECT {rows.TIMER_COLUMNS} FROM timer_schedules
JOIN unnest($1::text[], $2::text[]) AS wanted(tenant_id, service_call_id)
  USING (tenant_id, service_call_id)
"""  # noqa: S608

# The same, ours until the commit. In the order of the key: two batches never wait for each other in a ring.
LOCK: Final = f"{LOAD} ORDER BY tenant_id, service_call_id FOR UPDATE OF timer_schedules"

# For requests, which pass over a timer that is being fired instead of waiting. The clock is read once the
# lock is held.
LOCK_FOR_REQUESTS: Final = f"""
WITH locked AS MATERIALIZED ({LOAD} FOR UPDATE OF timer_schedules SKIP LOCKED)
SELECT {rows.TIMER_COLUMNS}, pg_try_advisory_xact_lock({FIRING}), {CLOCK} FROM locked
"""  # noqa: S608

# Rows as the domain's rules left them; their locks are held.
UPDATE: Final = f"""
UPDATE timer_schedules AS t SET {rows.changes_from("new")}
FROM {arrays.GIVEN} AS new({rows.TIMER_COLUMNS})
WHERE t.tenant_id = new.tenant_id AND t.service_call_id = new.service_call_id
"""  # noqa: S608

# A timer that was due by our clock but not by the database's has still to come, or has come since the look.
NEXT_DUE: Final = f"""
WITH moment AS MATERIALIZED (SELECT {CLOCK} AS clock)
SELECT (SELECT clock FROM moment), (
  SELECT min(due_at) FROM timer_schedules
  WHERE state = 'Scheduled' AND sink = 0
    AND due_at > least($1::text::timestamptz, coalesce($2::text::timestamptz, (SELECT clock FROM moment))))
"""  # noqa: S608

_FORGET: Final = """
DELETE FROM {table} AS c USING gone
WHERE gone.sink = 1 AND c.tenant_id = gone.tenant_id AND c.service_call_id = gone.service_call_id
"""
CALLBACK_TABLES: Final = ("timer_callbacks", "callback_deliveries", "callback_attempts")
# Retention, oldest first and bounded, so that it never holds up firing; several instances share the work.
# What waits for delivery is kept.
PURGE: Final = f"""
WITH old AS (
  SELECT tenant_id, service_call_id FROM timer_schedules AS t
  WHERE state <> 'Scheduled' AND coalesce(reached_at, cancelled_at, expired_at) < $1::text::timestamptz
    AND (sink = 0 OR NOT EXISTS (
      SELECT 1 FROM callback_deliveries AS d
      WHERE d.tenant_id = t.tenant_id AND d.service_call_id = t.service_call_id AND d.state = 'Waiting'))
  ORDER BY coalesce(reached_at, cancelled_at, expired_at)
  LIMIT $2
  FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM timer_schedules AS t USING old
  WHERE t.tenant_id = old.tenant_id AND t.service_call_id = old.service_call_id
  RETURNING t.tenant_id, t.service_call_id, t.sink),
{", ".join(f"forgotten_{n} AS ({_FORGET.format(table=table)})" for n, table in enumerate(CALLBACK_TABLES))}
SELECT count(*) FROM gone
"""  # noqa: S608

GET: Final = f"SELECT {rows.TIMER_COLUMNS} FROM timer_schedules WHERE tenant_id = $1 AND service_call_id = $2"  # noqa: S608

_OVERDUE: Final = """
SELECT count(*) AS overdue, min(due_at) AS oldest, (
  SELECT min(due_at) FROM timer_schedules
  WHERE state = 'Scheduled' AND sink = 0 AND due_at > $1::text::timestamptz) AS next
FROM timer_schedules WHERE state = 'Scheduled' AND sink = 0 AND due_at <= $1::text::timestamptz
"""
# For health and metrics: what is overdue, what comes next, how much room it takes.
COUNT_OVERDUE: Final = f"""
SELECT sum(overdue)::bigint, min(oldest), min(next), pg_total_relation_size('timer_schedules') FROM (
  {" UNION ALL ".join(rows.for_sink(_OVERDUE, sink) for sink in Sink)}) AS by_sink
"""  # noqa: S608

# All that is to come, by indexes that know nothing of what is over.
COUNT_PENDING: Final = """
SELECT (SELECT count(*) FROM timer_schedules WHERE state = 'Scheduled' AND sink = 0)
  + (SELECT count(*) FROM timer_schedules WHERE state = 'Scheduled' AND sink = 1)
"""
