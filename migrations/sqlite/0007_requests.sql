-- Of the request that made a timer, where it came with a key of its own: its repetition is known by it.
-- (Keys of the API are in a file of their own, because the command line changes them while the service runs.)
ALTER TABLE timer_schedules ADD COLUMN fingerprint TEXT;
