-- Less room for a pending timer: the due time of a pending timer is also a number, milliseconds since 1970, and both
-- indexes of pending timers keep that (6 bytes) instead of text and state (33 bytes). A number that does not fit the
-- text is refused. SQLite cannot add such a column to a table with rows: it is made again, row by row. No text changes.
CREATE TABLE timer_schedules_new (
    tenant_id         TEXT NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 64),
    service_call_id   TEXT NOT NULL CHECK (length(service_call_id) BETWEEN 1 AND 255),
    state             TEXT NOT NULL CHECK (state IN ('Scheduled', 'Reached', 'Cancelled', 'Expired')),
    due_at            TEXT CHECK (due_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    generation        INTEGER NOT NULL CHECK (generation >= 0),
    registered_at     TEXT NOT NULL CHECK (registered_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    correlation_id    TEXT CHECK (length(correlation_id) BETWEEN 1 AND 255),
    reached_at        TEXT CHECK (reached_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    cancelled_at      TEXT CHECK (cancelled_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    -- The newest command applied: the epoch of its stream, and its sequence.
    stream_created_us INTEGER NOT NULL,
    stream_sequence   INTEGER NOT NULL,
    -- The W3C trace context of the command, carried to the event.
    traceparent       TEXT,
    tracestate        TEXT,
    -- Which command has set the due time, the correlation id and the trace. NULL where it is the newest command.
    due_stream_created_us         INTEGER,
    due_stream_sequence           INTEGER,
    correlation_stream_created_us INTEGER,
    correlation_stream_sequence   INTEGER,
    trace_stream_created_us       INTEGER,
    trace_stream_sequence         INTEGER,
    -- Where a timer fires: 0 on the bus, 1 over HTTP; and how many callbacks it has had.
    sink              INTEGER NOT NULL DEFAULT 0 CHECK (sink IN (0, 1)),
    callback_revision INTEGER NOT NULL DEFAULT 0,
    -- The oldest command applied, NULL where it is the newest; and 1 where it counts only as the oldest.
    first_stream_created_us       INTEGER,
    first_stream_sequence         INTEGER,
    first_if_absent   INTEGER CHECK (first_if_absent = 1),
    -- How long after the due time the event is still of use; NULL: forever.
    expires_after_ms  INTEGER CHECK (expires_after_ms >= 0),
    expired_at        TEXT CHECK (expired_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    -- Of a timer that can expire: which event may be out. Written before it is published, once for each generation.
    verdict           TEXT CHECK (verdict IN ('Reached', 'Expired')),
    -- Of the request that made a timer, where it came with a key of its own: its repetition is known by it.
    fingerprint       TEXT,
    pending_due_ms    INTEGER CHECK (pending_due_ms IS CASE state WHEN 'Scheduled' THEN
        unixepoch(substr(due_at, 1, 10) || ' ' || substr(due_at, 12, 8)) * 1000 + substr(due_at, 21, 3)
    END),
    PRIMARY KEY (tenant_id, service_call_id),
    -- Only where a cancel came before any schedule that counts there is no due time.
    CHECK (due_at IS NOT NULL OR state = 'Cancelled'),
    CHECK ((state = 'Scheduled') = (pending_due_ms IS NOT NULL)),
    CHECK ((state = 'Reached') = (reached_at IS NOT NULL)),
    CHECK ((state = 'Cancelled') = (cancelled_at IS NOT NULL)),
    CHECK ((state = 'Expired') = (expired_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

INSERT INTO timer_schedules_new (
    tenant_id, service_call_id, state, due_at, generation, registered_at, correlation_id, reached_at, cancelled_at,
    stream_created_us, stream_sequence, traceparent, tracestate, due_stream_created_us, due_stream_sequence,
    correlation_stream_created_us, correlation_stream_sequence, trace_stream_created_us, trace_stream_sequence,
    sink, callback_revision,
    first_stream_created_us, first_stream_sequence, first_if_absent, expires_after_ms, expired_at, verdict, fingerprint,
    pending_due_ms)
SELECT
    tenant_id, service_call_id, state, due_at, generation, registered_at, correlation_id, reached_at, cancelled_at,
    stream_created_us, stream_sequence, traceparent, tracestate, due_stream_created_us, due_stream_sequence,
    correlation_stream_created_us, correlation_stream_sequence, trace_stream_created_us, trace_stream_sequence,
    sink, callback_revision,
    first_stream_created_us, first_stream_sequence, first_if_absent, expires_after_ms, expired_at, verdict, fingerprint,
    CASE state WHEN 'Scheduled' THEN
        unixepoch(substr(due_at, 1, 10) || ' ' || substr(due_at, 12, 8)) * 1000 + substr(due_at, 21, 3)
    END
FROM timer_schedules ORDER BY tenant_id, service_call_id;

DROP TABLE timer_schedules;
ALTER TABLE timer_schedules_new RENAME TO timer_schedules;

-- The poll of each sink, and counts: they read nothing else.
CREATE INDEX timer_schedules_due ON timer_schedules (sink, pending_due_ms) WHERE pending_due_ms IS NOT NULL;
-- A tenant's pending timers of each sink by due time: listing, and taking turns under backlog.
CREATE INDEX timer_schedules_pending ON timer_schedules (sink, tenant_id, pending_due_ms)
    WHERE pending_due_ms IS NOT NULL;
-- A tenant's timers that are over, by state, sink and due time: listing.
CREATE INDEX timer_schedules_over ON timer_schedules (tenant_id, state, sink, due_at) WHERE state <> 'Scheduled';
CREATE INDEX timer_schedules_by_correlation ON timer_schedules (correlation_id, tenant_id, due_at)
    WHERE correlation_id IS NOT NULL;
-- Retention: the oldest ended timers first.
CREATE INDEX timer_schedules_ended ON timer_schedules (coalesce(reached_at, cancelled_at, expired_at))
    WHERE state <> 'Scheduled';
