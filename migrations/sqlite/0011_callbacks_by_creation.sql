-- A tenant's timers with callbacks in the order in which they were created: the list of the compact dialect begins
-- with the newest. Timers that fire on the bus are not in it, and no change of a timer's state touches it.
CREATE INDEX timer_schedules_created ON timer_schedules (sink, tenant_id, registered_at) WHERE sink = 1;
