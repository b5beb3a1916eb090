-- One row per timer, for its whole life and its retention.
-- Times are fixed-width ISO 8601 UTC text, so that text order is time order.
CREATE TABLE timer_schedules (
    tenant_id         TEXT NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 64),
    service_call_id   TEXT NOT NULL CHECK (length(service_call_id) BETWEEN 1 AND 255),
    state             TEXT NOT NULL CHECK (state IN ('Scheduled', 'Reached', 'Cancelled')),
    due_at            TEXT CHECK (due_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    generation        INTEGER NOT NULL CHECK (generation >= 0),
    registered_at     TEXT NOT NULL CHECK (registered_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    correlation_id    TEXT CHECK (length(correlation_id) BETWEEN 1 AND 255),
    reached_at        TEXT CHECK (reached_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    cancelled_at      TEXT CHECK (cancelled_at GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].[0-9][0-9][0-9]Z'),
    -- The newest command applied: when its stream was created (microseconds since 1970), and its sequence.
    stream_created_us INTEGER NOT NULL,
    stream_sequence   INTEGER NOT NULL,
    -- The W3C trace context of the command, carried to the event.
    traceparent       TEXT,
    tracestate        TEXT,
    PRIMARY KEY (tenant_id, service_call_id),
    -- Only a cancel that came before any schedule has no due time.
    CHECK (due_at IS NOT NULL OR (state = 'Cancelled' AND generation = 0)),
    CHECK ((state = 'Reached') = (reached_at IS NOT NULL)),
    CHECK ((state = 'Cancelled') = (cancelled_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- The poll: scheduled rows only, so that its cost does not grow with history.
CREATE INDEX timer_schedules_due ON timer_schedules (due_at) WHERE state = 'Scheduled';

-- A tenant's timers by state and due time: listing, and taking turns under backlog.
CREATE INDEX timer_schedules_by_tenant ON timer_schedules (tenant_id, state, due_at);

-- "Which timers belong to this request?"
CREATE INDEX timer_schedules_by_correlation ON timer_schedules (correlation_id) WHERE correlation_id IS NOT NULL;

-- Retention: the oldest ended timers first.
CREATE INDEX timer_schedules_ended ON timer_schedules (coalesce(reached_at, cancelled_at)) WHERE state <> 'Scheduled';
