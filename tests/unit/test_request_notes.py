"""What is said of requests in the log: the first of a spell, not each time, and not only once for ever."""

from structlog.testing import capture_logs

from timer_service.adapters.nats.notes import QUIET_S, RequestNotes


def _notes() -> RequestNotes:
    return RequestNotes(lambda endpoint, outcome, seconds: None)


FIRST = [0.0, 10 * QUIET_S, 20 * QUIET_S]
"""When three spells begin."""
MOMENTS = [first + n * QUIET_S / 2 for first in FIRST for n in range(4)]


def test_a_reply_that_is_no_inbox_is_told_with_the_first_of_each_spell() -> None:
    notes = _notes()

    with capture_logs() as log:
        for now_s in MOMENTS:
            notes.ignored(now_s, "get", "timer.events.acme", f"{now_s}")

    assert [(line["event"], line["subject"]) for line in log] == [("call.ignored", f"{at}") for at in FIRST]


def test_an_error_that_nobody_has_thought_of_is_told_with_the_first_of_each_spell_and_endpoint() -> None:
    notes = _notes()

    with capture_logs() as log:
        for now_s in MOMENTS:
            for endpoint in ("get", "list"):
                notes.crashed(now_s, endpoint)

    assert [(line["event"], line["endpoint"]) for line in log] == [
        ("call.failed", endpoint) for _ in FIRST for endpoint in ("get", "list")
    ]
