-- Under backlog: which tenants have something due, found by leaping from tenant to tenant within ten minutes of
-- due times. Neither a tenant's whole backlog is read, nor anything of tenants whose timers are all to come.
CREATE INDEX timer_schedules_turns ON timer_schedules (
    (floor(date_part('epoch', due_at AT TIME ZONE 'UTC') / 600)::integer), tenant_id, due_at)
    WHERE state = 'Scheduled';

-- The timers of one request in the order of a page, so that no page sorts or skips those before it.
DROP INDEX timer_schedules_by_correlation;
CREATE INDEX timer_schedules_by_correlation
    ON timer_schedules (correlation_id, tenant_id, state, due_at, service_call_id)
    WHERE correlation_id IS NOT NULL;
