-- Where a timer fires: 0 on the bus, 1 over HTTP; and how many callbacks it has had.
ALTER TABLE timer_schedules ADD COLUMN sink smallint NOT NULL DEFAULT 0 CHECK (sink IN (0, 1));
ALTER TABLE timer_schedules ADD COLUMN callback_revision integer NOT NULL DEFAULT 0;

-- The poll of each sink sees its own timers only.
DROP INDEX timer_schedules_due;
CREATE INDEX timer_schedules_due ON timer_schedules (due_at) WHERE state = 'Scheduled' AND sink = 0;
CREATE INDEX timer_schedules_due_http ON timer_schedules (due_at) WHERE state = 'Scheduled' AND sink = 1;
DROP INDEX timer_schedules_turns;
CREATE INDEX timer_schedules_turns ON timer_schedules (
    (floor(date_part('epoch', due_at AT TIME ZONE 'UTC') / 600)::integer), tenant_id, due_at)
    WHERE state = 'Scheduled' AND sink = 0;
CREATE INDEX timer_schedules_turns_http ON timer_schedules (
    (floor(date_part('epoch', due_at AT TIME ZONE 'UTC') / 600)::integer), tenant_id, due_at)
    WHERE state = 'Scheduled' AND sink = 1;
DROP INDEX timer_schedules_by_tenant;
CREATE INDEX timer_schedules_by_tenant ON timer_schedules (tenant_id, state, sink, due_at, service_call_id);

-- The HTTP request of a timer, as it was accepted.
CREATE TABLE timer_callbacks (
    tenant_id         text COLLATE "C" NOT NULL,
    service_call_id   text COLLATE "C" NOT NULL,
    url               text NOT NULL,
    origin            text COLLATE "C" NOT NULL,
    method            text NOT NULL,
    -- JSON: pairs of name and value, secret values sealed.
    headers           text NOT NULL,
    -- NULL sends the event of the firing.
    body              bytea,
    content_type      text NOT NULL,
    -- JSON: milliseconds from each attempt to the next.
    retry_delays_ms   text NOT NULL,
    timeout_ms        bigint NOT NULL CHECK (timeout_ms > 0),
    expires_after_ms  bigint CHECK (expires_after_ms >= 0),
    signing           text NOT NULL,
    metadata          text,
    fingerprint       text NOT NULL,
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, service_call_id)
);

-- One row per firing over HTTP, made in the transaction that marks the timer as reached.
CREATE TABLE callback_deliveries (
    tenant_id         text COLLATE "C" NOT NULL,
    service_call_id   text COLLATE "C" NOT NULL,
    -- The id of the firing.
    delivery_id       uuid NOT NULL,
    generation        integer NOT NULL,
    state             text COLLATE "C" NOT NULL CHECK (state IN ('Waiting', 'Delivered', 'Failed', 'Abandoned')),
    origin            text COLLATE "C" NOT NULL,
    due_at            timestamptz NOT NULL,
    opened_at         timestamptz NOT NULL,
    next_attempt_at   timestamptz,
    expires_after_ms  bigint,
    attempts          integer NOT NULL CHECK (attempts >= 0),
    -- How many attempts were made before the last replay.
    series_from       integer NOT NULL CHECK (series_from BETWEEN 0 AND attempts),
    last_attempt_at   timestamptz,
    ended_at          timestamptz,
    status            integer,
    error             text CHECK (char_length(error) <= 500),
    -- Whose the attempt under way is, and until when, by the database's clock.
    claimed_by        text COLLATE "C",
    claimed_until     timestamptz,
    PRIMARY KEY (tenant_id, service_call_id),
    CHECK ((state = 'Waiting') = (next_attempt_at IS NOT NULL)),
    CHECK ((state = 'Waiting') = (ended_at IS NULL))
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 10000
);

-- What waits, in the order of its next attempts; and that of one tenant and receiver.
CREATE INDEX callback_deliveries_waiting
    ON callback_deliveries (next_attempt_at, tenant_id, service_call_id) WHERE state = 'Waiting';
CREATE INDEX callback_deliveries_lanes
    ON callback_deliveries (tenant_id, origin, next_attempt_at, service_call_id) WHERE state = 'Waiting';

-- A tenant's deliveries by state, in the order in which they are listed.
CREATE INDEX callback_deliveries_by_state ON callback_deliveries (tenant_id, state, opened_at, service_call_id);

-- The newest failed attempts of each delivery.
CREATE TABLE callback_attempts (
    tenant_id         text COLLATE "C" NOT NULL,
    service_call_id   text COLLATE "C" NOT NULL,
    attempt           integer NOT NULL,
    started_at        timestamptz NOT NULL,
    duration_ms       bigint NOT NULL,
    status            integer,
    error             text NOT NULL,
    PRIMARY KEY (tenant_id, service_call_id, attempt)
);

-- Who delivers, and when it was last seen, by the database's clock: claims of one that is silent are free.
CREATE TABLE callback_instances (
    instance          text COLLATE "C" NOT NULL PRIMARY KEY,
    seen_at           timestamptz NOT NULL
);
