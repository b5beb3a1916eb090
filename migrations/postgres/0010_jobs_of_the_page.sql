-- What a job on the page did to each timer is listed with that job; an action that was done by itself has none.
ALTER TABLE timer_page_actions ADD COLUMN job bigint;
CREATE INDEX timer_page_actions_by_job ON timer_page_actions (job, number);
