-- Which command has set the due time, the correlation id and the trace. NULL where it is the newest command of the
-- row (stream_created_us, stream_sequence), as it usually is: a pending timer needs no more room.
ALTER TABLE timer_schedules ADD COLUMN due_stream_created_us INTEGER;
ALTER TABLE timer_schedules ADD COLUMN due_stream_sequence INTEGER;
ALTER TABLE timer_schedules ADD COLUMN correlation_stream_created_us INTEGER;
ALTER TABLE timer_schedules ADD COLUMN correlation_stream_sequence INTEGER;
ALTER TABLE timer_schedules ADD COLUMN trace_stream_created_us INTEGER;
ALTER TABLE timer_schedules ADD COLUMN trace_stream_sequence INTEGER;

-- The epochs of command streams. A stream begins with one, numbered by the time at which it was created
-- (microseconds since 1970); a stream that comes back without its newest messages begins another, with a greater
-- number. That number is the first part of a command's position.
CREATE TABLE timer_stream_epochs (
    epoch             INTEGER NOT NULL PRIMARY KEY,
    stream_created_us INTEGER NOT NULL,
    -- Messages of the stream with a greater sequence, or stored later, belong to this epoch. 0: not known.
    after_sequence    INTEGER NOT NULL,
    after_us          INTEGER NOT NULL,
    -- The newest command that was applied, and when the broker stored it. 0: none, or not known.
    last_sequence     INTEGER NOT NULL,
    last_stored_us    INTEGER NOT NULL
) STRICT;

INSERT INTO timer_stream_epochs
SELECT stream_created_us, stream_created_us, 0, 0, max(stream_sequence), 0
FROM timer_schedules GROUP BY stream_created_us;
