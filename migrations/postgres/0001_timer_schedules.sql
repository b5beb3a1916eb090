-- One row per timer, for its whole life and its retention.
-- Ids are compared by code point, whatever the database's own collation, so that every store has one order.
-- Times are whole milliseconds of the years 0001 to 9999; infinity is no time.
CREATE TABLE timer_schedules (
    tenant_id         text COLLATE "C" NOT NULL CHECK (char_length(tenant_id) BETWEEN 1 AND 64),
    service_call_id   text COLLATE "C" NOT NULL CHECK (char_length(service_call_id) BETWEEN 1 AND 255),
    state             text COLLATE "C" NOT NULL CHECK (state IN ('Scheduled', 'Reached', 'Cancelled')),
    due_at            timestamptz CHECK (
        due_at >= '0001-01-01T00:00:00Z' AND due_at < '10000-01-01T00:00:00Z'
        AND due_at = date_trunc('milliseconds', due_at)),
    generation        integer NOT NULL CHECK (generation >= 0),
    registered_at     timestamptz NOT NULL CHECK (isfinite(registered_at)),
    correlation_id    text COLLATE "C" CHECK (char_length(correlation_id) BETWEEN 1 AND 255),
    reached_at        timestamptz CHECK (isfinite(reached_at)),
    cancelled_at      timestamptz CHECK (isfinite(cancelled_at)),
    -- The newest command applied: when its stream was created (microseconds since 1970), and its sequence.
    stream_created_us bigint NOT NULL,
    stream_sequence   bigint NOT NULL,
    -- The W3C trace context of the command, carried to the event.
    traceparent       text,
    tracestate        text,
    PRIMARY KEY (tenant_id, service_call_id),
    -- Only a cancel that came before any schedule has no due time.
    CHECK (due_at IS NOT NULL OR (state = 'Cancelled' AND generation = 0)),
    CHECK ((state = 'Reached') = (reached_at IS NOT NULL)),
    CHECK ((state = 'Cancelled') = (cancelled_at IS NOT NULL))
) WITH (
    -- Every timer leaves the index of what is due: clean up after tens of thousands, not after a fifth of all.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 10000
);

-- The poll: scheduled rows only, so that its cost does not grow with history.
CREATE INDEX timer_schedules_due ON timer_schedules (due_at) WHERE state = 'Scheduled';

-- A tenant's timers by state and due time: listing, and taking turns under backlog.
CREATE INDEX timer_schedules_by_tenant ON timer_schedules (tenant_id, state, due_at, service_call_id);

-- "Which timers belong to this request?"
CREATE INDEX timer_schedules_by_correlation ON timer_schedules (correlation_id, tenant_id)
    WHERE correlation_id IS NOT NULL;

-- Retention: the oldest ended timers first.
CREATE INDEX timer_schedules_ended ON timer_schedules ((coalesce(reached_at, cancelled_at)))
    WHERE state <> 'Scheduled';
