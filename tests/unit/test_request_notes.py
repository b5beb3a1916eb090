"""What is said of requests in the log: the first of a spell, not each time, and not only once forever."""

from structlog.testing import capture_logs

from tests.support.timers import ACME
from timer_service.adapters.nats.notes import MAX_SPELLS, QUIET_S, RequestNotes, Spells
from timer_service.domain.errors import StoreBusy


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

    assert [(line["event"], line["subject"]) for line in log] == [
        ("request.ignored", f"{at}") for at in FIRST
    ]


def test_an_error_that_nobody_has_thought_of_is_told_with_the_first_of_each_spell_and_endpoint() -> None:
    notes = _notes()

    with capture_logs() as log:
        for now_s in MOMENTS:
            for endpoint in ("get", "list"):
                notes.crashed(now_s, endpoint)

    assert [(line["event"], line["endpoint"]) for line in log] == [
        ("request.failed", endpoint) for _ in FIRST for endpoint in ("get", "list")
    ]


def test_a_tenant_that_is_limited_is_told_once_and_once_when_it_is_over() -> None:
    notes = _notes()

    with capture_logs() as log:
        for now_s in (0.0, 1.0, 2.0):
            notes.limited(now_s, ACME, "get")
        for now_s in (2.0 + QUIET_S - 0.1, 2.0 + QUIET_S, 3.0 + QUIET_S):
            notes.allowed(now_s, ACME)

    assert [(line["event"], line.get("refused")) for line in log] == [
        ("requests.limited", None),
        ("requests.unlimited", 3),
    ]


def test_requests_that_fail_are_told_once_and_once_when_they_work_again() -> None:
    notes = _notes()

    with capture_logs() as log:
        notes.failing(0.0, StoreBusy("locked"))
        notes.failing(1.0, StoreBusy("locked"))
        notes.works(1.5)
        notes.works(1.0 + QUIET_S)

    assert [(line["event"], line.get("refused")) for line in log] == [
        ("requests.failing", None),
        ("requests.recovered", 2),
    ]


def test_so_many_spells_are_remembered_and_the_one_that_was_quiet_longest_is_forgotten() -> None:
    spells = Spells()

    for number in range(MAX_SPELLS + 1):
        assert spells.begins(f"tenant {number}", 0.0)

    assert [spells.ends(f"tenant {number}", QUIET_S) for number in (0, 1)] == [0, 1]
