-- The timer as an action left it: what has changed since then is not undone.
ALTER TABLE timer_page_actions ADD COLUMN after text NOT NULL DEFAULT '';
