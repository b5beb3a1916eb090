-- Where a timer fires: 0 on the bus, 1 over HTTP; and how many callbacks it has had.
ALTER TABLE timer_schedules ADD COLUMN sink INTEGER NOT NULL DEFAULT 0 CHECK (sink IN (0, 1));
ALTER TABLE timer_schedules ADD COLUMN callback_revision INTEGER NOT NULL DEFAULT 0;

-- The poll of each sink sees its own timers only. Both columns are in it, so that counting reads no row.
DROP INDEX timer_schedules_due;
CREATE INDEX timer_schedules_due ON timer_schedules (state, sink, due_at) WHERE state = 'Scheduled' AND sink = 0;
CREATE INDEX timer_schedules_due_http ON timer_schedules (state, sink, due_at) WHERE state = 'Scheduled' AND sink = 1;
DROP INDEX timer_schedules_by_state;
CREATE INDEX timer_schedules_by_state ON timer_schedules (state, sink, tenant_id, due_at);

-- The HTTP request of a timer, as it was accepted. Apart from the timer and from its delivery: SQLite writes a whole
-- row at each change, and these may hold 64 KiB.
CREATE TABLE timer_callbacks (
    tenant_id         TEXT NOT NULL,
    service_call_id   TEXT NOT NULL,
    url               TEXT NOT NULL,
    origin            TEXT NOT NULL,
    method            TEXT NOT NULL,
    -- JSON: pairs of name and value, secret values sealed.
    headers           TEXT NOT NULL,
    -- NULL sends the event of the firing.
    body              BLOB,
    content_type      TEXT NOT NULL,
    -- JSON: milliseconds from each attempt to the next.
    retry_delays_ms   TEXT NOT NULL,
    timeout_ms        INTEGER NOT NULL CHECK (timeout_ms > 0),
    expires_after_ms  INTEGER CHECK (expires_after_ms >= 0),
    signing           TEXT NOT NULL,
    metadata          TEXT,
    fingerprint       TEXT NOT NULL,
    updated_at        TEXT NOT NULL CHECK (updated_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    PRIMARY KEY (tenant_id, service_call_id)
) STRICT;

-- One row per firing over HTTP, made in the transaction that marks the timer as reached.
CREATE TABLE callback_deliveries (
    tenant_id         TEXT NOT NULL,
    service_call_id   TEXT NOT NULL,
    -- The id of the firing.
    delivery_id       TEXT NOT NULL,
    generation        INTEGER NOT NULL,
    state             TEXT NOT NULL CHECK (state IN ('Waiting', 'Delivered', 'Failed', 'Abandoned')),
    origin            TEXT NOT NULL,
    due_at            TEXT NOT NULL CHECK (due_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    opened_at         TEXT NOT NULL CHECK (opened_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    next_attempt_at   TEXT CHECK (next_attempt_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    expires_after_ms  INTEGER,
    attempts          INTEGER NOT NULL CHECK (attempts >= 0),
    -- How many attempts were made before the last replay.
    series_from       INTEGER NOT NULL CHECK (series_from BETWEEN 0 AND attempts),
    last_attempt_at   TEXT CHECK (last_attempt_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    ended_at          TEXT CHECK (ended_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    status            INTEGER,
    error             TEXT CHECK (length(error) <= 500),
    PRIMARY KEY (tenant_id, service_call_id),
    CHECK ((state = 'Waiting') = (next_attempt_at IS NOT NULL)),
    CHECK ((state = 'Waiting') = (ended_at IS NULL))
) STRICT, WITHOUT ROWID;

-- What waits, in the order of its next attempts; and that of one tenant and receiver. Both answer without the table.
CREATE INDEX callback_deliveries_waiting
    ON callback_deliveries (next_attempt_at, tenant_id, service_call_id, origin) WHERE state = 'Waiting';
CREATE INDEX callback_deliveries_lanes
    ON callback_deliveries (tenant_id, origin, next_attempt_at, service_call_id) WHERE state = 'Waiting';

-- A tenant's deliveries by state, in the order in which they are listed.
CREATE INDEX callback_deliveries_by_state ON callback_deliveries (tenant_id, state, opened_at);

-- The newest failed attempts of each delivery.
CREATE TABLE callback_attempts (
    tenant_id         TEXT NOT NULL,
    service_call_id   TEXT NOT NULL,
    attempt           INTEGER NOT NULL,
    started_at        TEXT NOT NULL CHECK (started_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    duration_ms       INTEGER NOT NULL,
    status            INTEGER,
    error             TEXT NOT NULL,
    PRIMARY KEY (tenant_id, service_call_id, attempt)
) STRICT, WITHOUT ROWID;
