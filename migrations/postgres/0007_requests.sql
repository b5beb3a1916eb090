-- Keys of the REST API. The SHA-256 of a key is kept, never the key itself.
CREATE TABLE timer_api_keys (
    key_id     text NOT NULL PRIMARY KEY,
    tenant_id  text NOT NULL,
    scopes     text NOT NULL,
    digest     text NOT NULL CHECK (length(digest) = 64),
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    note       text NOT NULL
);

-- Of the request that made a timer, where it came with a key of its own: its repetition is known by it.
ALTER TABLE timer_schedules ADD COLUMN fingerprint text;
