-- How the answer to a failed attempt began, where the operator wants that kept.
ALTER TABLE callback_attempts ADD COLUMN answer text CHECK (char_length(answer) <= 1024);
