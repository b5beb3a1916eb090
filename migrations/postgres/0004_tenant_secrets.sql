-- Secrets of tenants: the keys by which their callbacks are signed, and values that headers refer to. Each is
-- sealed with a key of TIMER_SECRET_KEYS, which is not in the database.
CREATE TABLE timer_tenant_secrets (
    tenant_id  text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL CHECK (kind IN ('ed25519', 'hmac', 'named')),
    name       text COLLATE "C" NOT NULL,
    sealed     bytea NOT NULL,
    created_at timestamptz NOT NULL,
    -- From when on a signing key signs no more.
    ends_at    timestamptz,
    PRIMARY KEY (tenant_id, kind, name)
);
