-- Timers that expire, and schedules that count only where there is no timer.

-- The oldest command applied, NULL where it is the newest; and 1 where it counts only as the oldest.
ALTER TABLE timer_schedules ADD COLUMN first_stream_created_us bigint;
ALTER TABLE timer_schedules ADD COLUMN first_stream_sequence bigint;
ALTER TABLE timer_schedules ADD COLUMN first_if_absent smallint CHECK (first_if_absent = 1);
-- How long after the due time the event is still of use; NULL: forever.
ALTER TABLE timer_schedules ADD COLUMN expires_after_ms bigint CHECK (expires_after_ms >= 0);
ALTER TABLE timer_schedules ADD COLUMN expired_at timestamptz CHECK (isfinite(expired_at));
-- Of a timer that can expire: which event may be out. Written before it is published, once for each generation.
ALTER TABLE timer_schedules ADD COLUMN verdict text COLLATE "C" CHECK (verdict IN ('Reached', 'Expired'));

ALTER TABLE timer_schedules DROP CONSTRAINT timer_schedules_state_check;
ALTER TABLE timer_schedules ADD CONSTRAINT timer_schedules_state_check
    CHECK (state IN ('Scheduled', 'Reached', 'Cancelled', 'Expired'));
ALTER TABLE timer_schedules ADD CHECK ((state = 'Expired') = (expired_at IS NOT NULL));
-- Only where a cancel came before any schedule that counts there is no due time.
ALTER TABLE timer_schedules DROP CONSTRAINT timer_schedules_check;
ALTER TABLE timer_schedules ADD CONSTRAINT timer_schedules_check CHECK (due_at IS NOT NULL OR state = 'Cancelled');

-- Retention: the oldest ended timers first.
DROP INDEX timer_schedules_ended;
CREATE INDEX timer_schedules_ended ON timer_schedules ((coalesce(reached_at, cancelled_at, expired_at)))
    WHERE state <> 'Scheduled';
