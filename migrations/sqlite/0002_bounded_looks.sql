-- Indexes whose order answers a look or a page without reading what it does not need. No row changes.

-- The poll. The state is in it, although it never differs: without, counting would read each row's table entry.
DROP INDEX timer_schedules_due;
CREATE INDEX timer_schedules_due ON timer_schedules (state, due_at) WHERE state = 'Scheduled';

-- A tenant's timers by state and due time. The state comes first, so that tenants with nothing but history are
-- never met on the way from one tenant with pending timers to the next.
DROP INDEX timer_schedules_by_tenant;
CREATE INDEX timer_schedules_by_state ON timer_schedules (state, tenant_id, due_at);

-- "Which timers belong to this request?", in the order in which they are listed.
DROP INDEX timer_schedules_by_correlation;
CREATE INDEX timer_schedules_by_correlation ON timer_schedules (correlation_id, tenant_id, due_at)
    WHERE correlation_id IS NOT NULL;
