-- Counts read the index of what is due and nothing else, as long as the server knows which pages of the table every
-- transaction sees. It learns that from vacuuming: after tens of thousands of new timers, not after a fifth of all.
ALTER TABLE timer_schedules SET (
    autovacuum_vacuum_insert_scale_factor = 0.01,
    autovacuum_vacuum_insert_threshold = 10000
);
