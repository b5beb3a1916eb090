"""The statements of the PostgreSQL store about callbacks and their deliveries."""

from typing import Final

from timer_service.adapters import callback_rows as columns
from timer_service.adapters.postgres.statements import CALLBACK_TABLES, CLOCK
from timer_service.adapters.rows import of_table
from timer_service.domain.delivery import KEPT_ATTEMPTS

SILENT: Final = "interval '6 seconds'"
"""An instance that was not seen for this long no longer holds what it has claimed."""
GRACE: Final = "interval '15 seconds'"
"""How much longer than its time limit an attempt may take before its claim ends."""

_KEY: Final = "{0}.tenant_id = {1}.tenant_id AND {0}.service_call_id = {1}.service_call_id"
_MOMENT: Final = f"least($1::text::timestamptz, {CLOCK})"

# Free of other instances: not claimed, or for too long, or by one that is gone.
_FREE: Final = f"""(d.claimed_by IS NULL OR d.claimed_by = $2 OR d.claimed_until < {CLOCK} OR NOT EXISTS (
    SELECT 1 FROM callback_instances AS i
    WHERE i.instance = d.claimed_by AND i.seen_at > {CLOCK} - {SILENT}))"""  # noqa: S608 - constants

# The callbacks that requests have given to their timers.
KEEP_CALLBACK: Final = f"""
INSERT INTO timer_callbacks ({columns.CALLBACK_COLUMNS})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::timestamptz)
ON CONFLICT (tenant_id, service_call_id) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in columns.CALLBACK_COLUMNS.split(", ")[2:])}
"""  # noqa: S608

FORGET: Final = tuple(
    f"DELETE FROM {table} WHERE tenant_id = $1 AND service_call_id = $2"  # noqa: S608
    for table in CALLBACK_TABLES
)

# For timers that this transaction has marked, and for no others.
OPEN_DELIVERIES: Final = f"""
INSERT INTO callback_deliveries ({columns.DELIVERY_COLUMNS})
SELECT t.tenant_id, t.service_call_id, event.id, t.generation, 'Waiting', c.origin, t.due_at, t.reached_at,
  t.reached_at, c.expires_after_ms, 0, 0, NULL, NULL, NULL, NULL
FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[],
  $5::text[]::timestamptz[], $6::text[]::uuid[])
  AS event(tenant_id, service_call_id, generation, state, reached_at, id)
JOIN timer_schedules AS t USING (tenant_id, service_call_id, generation, state, reached_at)
JOIN timer_callbacks AS c USING (tenant_id, service_call_id)
WHERE state = 'Reached'
ON CONFLICT DO NOTHING
"""  # noqa: S608

# Say that we are alive, and forget instances that have not been seen for long.
BEAT: Final = f"""
WITH forgotten AS (
  DELETE FROM callback_instances WHERE seen_at < {CLOCK} - interval '1 hour')
INSERT INTO callback_instances VALUES (coalesce($1, gen_random_uuid()::text), {CLOCK})
ON CONFLICT (instance) DO UPDATE SET seen_at = excluded.seen_at
RETURNING instance
"""  # noqa: S608

LEAVE: Final = "DELETE FROM callback_instances WHERE instance = $1"

# What may be attempted, from a place on.
DUE: Final = f"""
SELECT {columns.WAITING_COLUMNS} FROM callback_deliveries AS d
WHERE state = 'Waiting' AND next_attempt_at <= {_MOMENT} AND {_FREE}
  AND (next_attempt_at, tenant_id, service_call_id) > ($3::text::timestamptz, $4::text, $5::text)
ORDER BY next_attempt_at, tenant_id, service_call_id
LIMIT $6
"""  # noqa: S608

# The same of one tenant and receiver.
DUE_OF_LANE: Final = f"""
SELECT {columns.WAITING_COLUMNS} FROM callback_deliveries AS d
WHERE state = 'Waiting' AND tenant_id = $4 AND origin = $7 AND next_attempt_at <= {_MOMENT} AND {_FREE}
  AND (next_attempt_at, service_call_id) > ($3::text::timestamptz, $5::text)
ORDER BY next_attempt_at, service_call_id
LIMIT $6
"""  # noqa: S608

# The same of those that were just handed over.
DUE_AMONG: Final = f"""
SELECT {of_table("d", columns.WAITING_COLUMNS)}
FROM unnest($3::text[], $4::text[]) AS wanted(tenant_id, service_call_id)
JOIN callback_deliveries AS d ON {_KEY.format("d", "wanted")}
WHERE d.state = 'Waiting' AND d.next_attempt_at <= {_MOMENT} AND {_FREE}
"""  # noqa: S608

# What is due by our clock but not by the database's is still to come.
NEXT_ATTEMPT: Final = f"""
WITH moment AS MATERIALIZED (SELECT {CLOCK} AS clock)
SELECT (SELECT clock FROM moment), (
  SELECT min(next_attempt_at) FROM callback_deliveries
  WHERE state = 'Waiting' AND next_attempt_at > least($1::text::timestamptz, (SELECT clock FROM moment)))
"""  # noqa: S608

# Claim what is still free, and return all that an attempt needs. Nobody waits for anybody.
CLAIM: Final = f"""
WITH free AS MATERIALIZED (
  SELECT d.tenant_id, d.service_call_id
  FROM unnest($3::text[], $4::text[]) AS wanted(tenant_id, service_call_id)
  JOIN callback_deliveries AS d ON {_KEY.format("d", "wanted")}
  WHERE d.state = 'Waiting' AND d.next_attempt_at <= {_MOMENT} AND {_FREE}
  FOR UPDATE OF d SKIP LOCKED)
UPDATE callback_deliveries AS d
SET claimed_by = $2, claimed_until = {CLOCK} + c.timeout_ms * interval '1 millisecond' + {GRACE}
FROM free
JOIN timer_callbacks AS c ON {_KEY.format("c", "free")}
JOIN timer_schedules AS t ON {_KEY.format("t", "free")}
WHERE {_KEY.format("d", "free")}
RETURNING {of_table("d", columns.DELIVERY_COLUMNS)}, {of_table("c", columns.CALLBACK_COLUMNS)},
  {of_table("t", columns.CONTEXT_COLUMNS)}
"""  # noqa: S608

_OUTCOME_TYPES: Final = (
    "text[]",
    "text[]::timestamptz[]",
    "integer[]",
    "text[]::timestamptz[]",
    "text[]::timestamptz[]",
    "integer[]",
    "text[]",
)
# What attempts came to. Guarded by what was claimed: an outcome that comes twice, too late, or after another
# instance took over changes nothing.
FINISH: Final = f"""
UPDATE callback_deliveries AS d
SET claimed_by = NULL, claimed_until = NULL,
  {", ".join(f"{name} = ended.{name}" for name in columns.OUTCOME_COLUMNS)}
FROM unnest($2::text[], $3::text[], $4::integer[], $5::integer[],
    {", ".join(f"${n}::{kind}" for n, kind in enumerate(_OUTCOME_TYPES, start=6))})
  AS ended(tenant_id, service_call_id, had_attempts, had_series, {", ".join(columns.OUTCOME_COLUMNS)})
WHERE {_KEY.format("d", "ended")} AND d.state = 'Waiting' AND d.claimed_by = $1
  AND d.attempts = ended.had_attempts AND d.series_from = ended.had_series
RETURNING d.tenant_id, d.service_call_id
"""  # noqa: S608

# A whole row of another store, for a copy.
KEEP_DELIVERY: Final = f"""
INSERT INTO callback_deliveries ({columns.DELIVERY_COLUMNS})
VALUES ($1, $2, $3::text::uuid, $4, $5, $6, $7::text::timestamptz, $8::text::timestamptz,
  $9::text::timestamptz, $10, $11, $12, $13::text::timestamptz, $14::text::timestamptz, $15, $16)
"""  # noqa: S608

KEEP_ATTEMPT: Final = f"""
INSERT INTO callback_attempts ({columns.ATTEMPT_COLUMNS})
VALUES ($1, $2, $3, $4::text::timestamptz, $5, $6, $7, $8) ON CONFLICT DO NOTHING
"""  # noqa: S608

FORGET_ATTEMPTS: Final = f"""
DELETE FROM callback_attempts
WHERE tenant_id = $1 AND service_call_id = $2 AND attempt <= $3 - {KEPT_ATTEMPTS}
"""  # noqa: S608

_OF_KEYS: Final = """
SELECT {columns} FROM unnest($1::text[], $2::text[]) AS wanted(tenant_id, service_call_id)
JOIN {table} USING (tenant_id, service_call_id)
"""
GET_CALLBACKS: Final = _OF_KEYS.format(columns=columns.CALLBACK_COLUMNS, table="timer_callbacks")
GET_DELIVERIES: Final = _OF_KEYS.format(columns=columns.DELIVERY_COLUMNS, table="callback_deliveries")
GET_ATTEMPTS: Final = (
    _OF_KEYS.format(columns=columns.ATTEMPT_COLUMNS, table="callback_attempts") + "ORDER BY attempt"
)

# A tenant's deliveries: one index-ordered page for each state, merged.
LIST: Final = f"""
SELECT page.* FROM unnest($2::text[]) AS wanted(state)
CROSS JOIN LATERAL (
  SELECT {columns.DELIVERY_COLUMNS} FROM callback_deliveries AS d
  WHERE d.tenant_id = $1 AND d.state = wanted.state
    AND (opened_at, service_call_id) > ($3::text::timestamptz, $4::text)
    AND opened_at < $5::text::timestamptz
    AND ($7::text IS NULL OR origin = $7)
  ORDER BY opened_at, service_call_id
  LIMIT $6) AS page
ORDER BY opened_at, service_call_id
LIMIT $6
"""  # noqa: S608

# By key, and only what is still as it was read.
REPLAY: Final = f"""
UPDATE callback_deliveries AS d
SET state = 'Waiting', next_attempt_at = $1::text::timestamptz, series_from = d.attempts,
  expires_after_ms = NULL, ended_at = NULL, claimed_by = NULL, claimed_until = NULL
FROM unnest($2::text[], $3::text[], $4::text[], $5::integer[])
  AS wanted(tenant_id, service_call_id, state, attempts)
WHERE {_KEY.format("d", "wanted")} AND d.state = wanted.state AND d.attempts = wanted.attempts
  AND d.state <> 'Waiting'
"""  # noqa: S608

ABANDON: Final = """
UPDATE callback_deliveries
SET state = 'Abandoned', next_attempt_at = NULL, ended_at = $1::text::timestamptz, claimed_by = NULL,
  claimed_until = NULL
WHERE tenant_id = $2 AND service_call_id = $3 AND state = 'Waiting'
"""

COUNT: Final = """
SELECT (SELECT count(*) FROM callback_deliveries WHERE state = 'Waiting'), count(*), min(next_attempt_at)
FROM callback_deliveries WHERE state = 'Waiting' AND next_attempt_at <= $1::text::timestamptz
"""
