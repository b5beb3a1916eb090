-- When a key of the API last opened: what nobody uses can be revoked.
ALTER TABLE timer_api_keys ADD COLUMN used_at timestamptz;
