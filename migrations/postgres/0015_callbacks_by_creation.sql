-- A tenant's timers with callbacks in the order in which they were created: the list of the compact dialect begins
-- with the newest. Timers that fire on the bus are not in it.
CREATE INDEX timer_schedules_created ON timer_schedules (tenant_id, registered_at, service_call_id) WHERE sink = 1;
