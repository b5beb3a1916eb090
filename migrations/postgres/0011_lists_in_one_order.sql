-- What is due, in the order in which the page lists it: where a hundred thousand timers are due at one moment, a page
-- of fifty of them reads fifty. The poll goes through the same index and reads no more than before.
DROP INDEX timer_schedules_due;
CREATE INDEX timer_schedules_due ON timer_schedules (due_at, tenant_id, service_call_id)
    WHERE state = 'Scheduled' AND sink = 0;
DROP INDEX timer_schedules_due_http;
CREATE INDEX timer_schedules_due_http ON timer_schedules (due_at, tenant_id, service_call_id)
    WHERE state = 'Scheduled' AND sink = 1;
