-- Who did what on the page, kept for 90 days. On SQLite it is a file of its own, beside that of the timers.
CREATE TABLE timer_page_actions (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL,
    actor     text NOT NULL,
    role      text NOT NULL,
    action    text NOT NULL,
    tenant_id text,
    subject   text NOT NULL,
    before    text NOT NULL,
    outcome   text NOT NULL,
    reason    text NOT NULL
);

CREATE INDEX timer_page_actions_at ON timer_page_actions (at);
