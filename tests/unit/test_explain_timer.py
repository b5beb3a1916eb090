"""Explain this timer: what is said for each state of the world."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.timers import ACME, at, reached, scheduled_timer
from timer_client.wire import CAUSES
from timer_service.domain.callback import Callback, Sink
from timer_service.domain.cause import Cause
from timer_service.domain.delivery import DeliveryState, open_delivery
from timer_service.domain.messages import Position
from timer_service.domain.spoken import moment_text, span_text, whole_span_text
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.ports.event_trail import Reader, Reading, Trail
from timer_service.ports.explanation import Explanation, Facts, Obstacle
from timer_service.ports.health import Health
from timer_service.ports.letter_box import Letter, LettersFound
from timer_service.workflows.explain_timer import explain

NOW = at(0)
"""The test's clock starts at noon."""
AWAY = Health(None, {"broker": "no server answers at nats://user:pw@10.0.0.1"})
FULL = Health(None, {"store": "disk full: /var/lib/timers.db"})


def said(timer: Timer | None, **facts: Any) -> Explanation:
    return explain(Facts(NOW, timer, **facts))


def late_by(seconds: float, **changes: Any) -> Timer:
    return replace(scheduled_timer(due_s=-seconds), **changes)


def fired(late_s: float = 0.004, **changes: Any) -> Timer:
    return late_by(60, state=TimerState.REACHED, reached_at=at(late_s - 60), **changes)


def with_callback(state: DeliveryState = DeliveryState.WAITING, **changes: Any) -> dict[str, Any]:
    callback = Callback("https://receiver.example/orders")
    delivery = replace(open_delivery(reached(), callback), state=state, **changes)
    return {"record": CallbackRecord(callback, delivery)}


def letter(number: int, detail: str) -> Letter:
    return Letter(number, ACME, NOW, "invalid", detail, "timer.commands.acme.ScheduleTimer", b"{}")


def held(cause: Cause, **changes: Any) -> Obstacle:
    return Obstacle(cause, **changes)


TABLE: dict[str, tuple[Timer | None, dict[str, Any], Cause, str]] = {
    "due later": (
        scheduled_timer(due_s=2 * 3600 + 13 * 60),
        {},
        Cause.NOT_DUE,
        "Due in 2 h 13 min; nothing is wrong.",
    ),
    "due later, but": (
        scheduled_timer(due_s=90),
        {"health": AWAY, "since": {"broker": at(-600)}},
        Cause.NOT_DUE,
        "Due in 1 min 30 s; it would be late now: the broker has been away since 11:50:00 UTC.",
    ),
    "due now": (late_by(0.02), {}, Cause.BEING_FIRED, "Due 20 ms ago: it is being fired."),
    "broker away": (
        late_by(41),
        {"health": AWAY, "since": {"broker": at(-49)}},
        Cause.BROKER_AWAY,
        "Overdue by 41 s: the broker has been away since 11:59:11 UTC.",
    ),
    "no broker at all": (
        late_by(41),
        {"has_broker": False},
        Cause.NO_BROKER,
        "Overdue by 41 s: the service has no broker (TIMER_BROKER_URL=none), and this timer has no callback.",
    ),
    "broker away does not concern a callback": (
        late_by(0.5, sink=Sink.HTTP),
        {"health": AWAY},
        Cause.BEING_FIRED,
        "Due 500 ms ago: it is being fired.",
    ),
    "store": (
        late_by(41),
        {"health": FULL},
        Cause.STORE_TROUBLE,
        "Overdue by 41 s: the store takes no change.",
    ),
    "clock held": (
        scheduled_timer(due_s=60),
        {"held_step": timedelta(hours=1), "health": Health(None, {"clock": "leapt"})},
        Cause.CLOCK_HELD,
        (
            "Due in 1 min by the service's clock, due already by the machine's: the machine's clock leapt "
            "forward by 1 h, and the service waits for a person to confirm that (timer-service clock accept)."
        ),
    ),
    "clock held, and due at this moment by the machine's": (
        scheduled_timer(due_s=3600),
        {"held_step": timedelta(hours=1), "health": Health(None, {"clock": "leapt"})},
        Cause.CLOCK_HELD,
        (
            "Due in 1 h by the service's clock, due already by the machine's: the machine's clock leapt "
            "forward by 1 h, and the service waits for a person to confirm that (timer-service clock accept)."
        ),
    ),
    "stuck": (
        late_by(41),
        {"health": Health("has not polled for 40 s", {})},
        Cause.WORKER_STUCK,
        "Overdue by 41 s: the loop that fires timers is stuck; a restart helps.",
    ),
    "everything held back": (
        late_by(41),
        {"obstacle": held(Cause.STREAM_REFUSES, until=at(8), attempts=3, detail="maximum bytes exceeded")},
        Cause.STREAM_REFUSES,
        "Overdue by 41 s: the event stream accepts nothing (3 tries so far); tried again in 8 s.",
    ),
    "tenant held back": (
        late_by(41),
        {"obstacle": held(Cause.TENANT_HELD_BACK, until=at(-1), attempts=1)},
        Cause.TENANT_HELD_BACK,
        "Overdue by 41 s: the events of this tenant cannot be published (1 try so far).",
    ),
    "timer held back": (
        late_by(41),
        {"obstacle": held(Cause.TIMER_HELD_BACK)},
        Cause.TIMER_HELD_BACK,
        "Overdue by 41 s: its event cannot be published.",
    ),
    "catch-up": (
        late_by(1.2),
        {"obstacle": held(Cause.WAITS_FOR_COMMANDS)},
        Cause.WAITS_FOR_COMMANDS,
        "Overdue by 1.2 s: the tenant has commands that were stored before it was due; they go first.",
    ),
    "silent command stream": (
        late_by(12),
        {"obstacle": held(Cause.COMMANDS_SILENT)},
        Cause.COMMANDS_SILENT,
        "Overdue by 12 s: the command stream does not answer, so timers wait for TIMER_CATCH_UP.",
    ),
    "backlog": (
        late_by(9),
        {"due": 180_000, "fired_per_s": 20_000.4},
        Cause.BACKLOG,
        "Overdue by 9 s: 180,000 timers are due, and 20,000 per second were fired in the last minute.",
    ),
    "nobody knows": (
        late_by(9),
        {"due": 1},
        Cause.UNEXPLAINED,
        "Overdue by 9 s, and this instance knows no reason: its log may, or another instance.",
    ),
    "fired, read": (
        fired(),
        {
            "trail": Trail(
                "TIMER_EVENTS", 8812, (Reader("acme-billing", Reading.ACKNOWLEDGED, of_tenant=True),)
            )
        },
        Cause.FIRED,
        "Fired 4 ms late; stored as TIMER_EVENTS 8812; acme-billing has acknowledged it.",
    ),
    "fired on time, nobody reads": (
        fired(0),
        {"trail": Trail("TIMER_EVENTS", 1)},
        Cause.FIRED,
        "Fired on time; stored as TIMER_EVENTS 1; no consumer reads it.",
    ),
    "fired, gone": (
        fired(),
        {"trail": Trail("TIMER_EVENTS", None)},
        Cause.FIRED,
        (
            "Fired 4 ms late; its event was not found in TIMER_EVENTS: "
            "it is no longer kept, or stands among many."
        ),
    ),
    "fired, nobody could look": (fired(), {}, Cause.FIRED, "Fired 4 ms late."),
    "cancelled": (
        late_by(60, state=TimerState.CANCELLED, cancelled_at=at(-90)),
        {},
        Cause.CANCELLED,
        "Cancelled at 11:58:30 UTC; it does not fire.",
    ),
    "cancelled first": (
        replace(scheduled_timer(), state=TimerState.CANCELLED, due_at=None, cancelled_at=at(-86_400)),
        {},
        Cause.CANCELLED,
        "Cancelled at 2025-12-31 12:00:00 UTC, before any command scheduled it; it does not fire.",
    ),
    "expired": (
        late_by(60, state=TimerState.EXPIRED, expires_after_ms=1000, expired_at=at(-57)),
        {"trail": Trail("TIMER_EVENTS", 7, (Reader("all", Reading.WAITING, of_tenant=False),))},
        Cause.EXPIRED,
        (
            "Expired, 3 s late: its event was of use for 1 s after the due time; TimerExpired was published; "
            "stored as TIMER_EVENTS 7; all has not read it yet."
        ),
    ),
    "callback to come": (
        fired(sink=Sink.HTTP),
        with_callback(),
        Cause.CALLBACK_WAITING,
        "Fired 4 ms late; the first attempt of its callback is about to begin.",
    ),
    "callback retried": (
        fired(sink=Sink.HTTP),
        with_callback(attempts=3, error="status 500", next_attempt_at=at(300)),
        Cause.CALLBACK_RETRYING,
        "Fired 4 ms late; 3 attempts failed, the last with status 500; attempt 4 of 10 is in 5 min.",
    ),
    "callback retried right now": (
        fired(sink=Sink.HTTP),
        with_callback(attempts=3, error="status 500", next_attempt_at=at(0)),
        Cause.CALLBACK_RETRYING,
        "Fired 4 ms late; 3 attempts failed, the last with status 500; the next is about to begin.",
    ),
    "breaker": (
        fired(sink=Sink.HTTP),
        {**with_callback(attempts=3, error="status 500"), "receiver_back_at": at(15)},
        Cause.RECEIVER_AWAY,
        (
            "Fired 4 ms late; its callback waits: https://receiver.example:443 keeps failing and is "
            "tried next in 15 s."
        ),
    ),
    "callback delivered": (
        fired(sink=Sink.HTTP),
        with_callback(DeliveryState.DELIVERED, attempts=1, status=204, ended_at=at(-59)),
        Cause.CALLBACK_DELIVERED,
        (
            "Fired 4 ms late; https://receiver.example:443 took its callback at 11:59:01 UTC with 204, "
            "after 1 attempt."
        ),
    ),
    "callback failed": (
        fired(sink=Sink.HTTP),
        with_callback(DeliveryState.FAILED, attempts=10, error="timeout", ended_at=at(-1)),
        Cause.CALLBACK_FAILED,
        "Fired 4 ms late; its callback failed at 11:59:59 UTC after 10 attempts: timeout.",
    ),
    "callback abandoned": (
        fired(sink=Sink.HTTP),
        with_callback(DeliveryState.ABANDONED, attempts=2, ended_at=at(-1)),
        Cause.CALLBACK_ABANDONED,
        "Fired 4 ms late; its callback was abandoned at 11:59:59 UTC after 2 attempts.",
    ),
    "refused": (
        None,
        {"letters": LettersFound((letter(812, "dueAt has no zone"),), 5)},
        Cause.REFUSED,
        "No such timer; letter 812 names this id: dueAt has no zone.",
    ),
    "refused twice": (
        None,
        {"letters": LettersFound((letter(9, "dueAt has no zone."), letter(4, "?")), 5)},
        Cause.REFUSED,
        "No such timer; letter 9 names this id (so does 1 older one): dueAt has no zone.",
    ),
    "refused again and again": (
        None,
        {"letters": LettersFound((letter(9, "dueAt has no zone."), letter(4, "?"), letter(2, "?")), 5)},
        Cause.REFUSED,
        "No such timer; letter 9 names this id (so do 2 older ones): dueAt has no zone.",
    ),
    "not yet": (
        None,
        {"letters": LettersFound(), "commands_wait": True},
        Cause.COMMANDS_WAITING,
        "No such timer yet: commands of this tenant are stored and not applied.",
    ),
    "not there, broker away": (
        None,
        {"health": AWAY, "since": {"broker": at(-10)}},
        Cause.BROKER_AWAY,
        (
            "No such timer; the broker has been away since 11:59:50 UTC, "
            "so a command for it may not be applied yet."
        ),
    ),
    "never heard of": (
        None,
        {"letters": LettersFound((), 2000, older=77)},
        Cause.NOT_FOUND,
        (
            "No such timer: no command for it has arrived, or it ended long ago and was deleted; of the "
            "letters only the newest 2,000 were looked at."
        ),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_state_of_the_world_has_its_sentence(name: str) -> None:
    timer, facts, cause, text = TABLE[name]

    found = said(timer, **facts)

    assert (found.cause, found.text) == (cause, text)


def test_every_cause_is_told_of_here_and_on_the_wire() -> None:
    told = {cause for _, _, cause, _ in TABLE.values()}

    assert told == set(Cause)
    assert list(CAUSES) == [cause.value for cause in Cause]


def test_a_tenant_is_not_told_what_only_an_operator_may_know() -> None:
    away, full = said(late_by(41), health=AWAY), said(late_by(41), health=FULL)

    assert "10.0.0.1" not in away.text
    assert "/var/lib" not in full.text
    assert (away.detail, full.detail) == (AWAY.problems["broker"], FULL.problems["store"])


@pytest.mark.parametrize("name", TABLE)
def test_only_what_takes_its_course_is_called_well(name: str) -> None:
    well = {"due later", "due now", "cancelled", "cancelled first", "expired", "callback to come"}
    well |= {"broker away does not concern a callback", "callback delivered", "callback abandoned"}
    well |= {each for each in TABLE if each.startswith("fired")}
    timer, facts, _, _ = TABLE[name]

    assert said(timer, **facts).is_well is (name in well)


def test_consumers_that_are_behind_are_named_first() -> None:
    readers = [Reader(f"team-{n}", Reading.ACKNOWLEDGED, of_tenant=True) for n in range(5)]
    late = Reader("slow", Reading.WAITING, of_tenant=True), Reader("busy", Reading.DELIVERED, of_tenant=True)

    found = said(fired(), trail=Trail("TIMER_EVENTS", 3, (*readers, *late)))

    assert found.text.startswith(
        "Fired 4 ms late; stored as TIMER_EVENTS 3; slow has not read it yet; "
        "busy has received it and not acknowledged everything; team-0 has"
    )
    assert found.text.endswith("; 2 other consumers.")
    assert not found.is_well


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(), "0 ms"),
        (timedelta(milliseconds=999), "999 ms"),
        (timedelta(milliseconds=1500), "1.5 s"),
        (timedelta(seconds=-41), "41 s"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=1, seconds=5), "1 h"),
        (timedelta(days=3, hours=4, minutes=5), "3 d 4 h"),
        (timedelta(days=4000), "4,000 d"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(span: timedelta, text: str) -> None:
    assert span_text(span) == text


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(milliseconds=999), "0 s"),
        (timedelta(milliseconds=-1500), "1 s"),
        (timedelta(hours=2, minutes=13, seconds=5), "2 h 13 min"),
        (timedelta(hours=1, seconds=5), "1 h"),
    ],
)
def test_a_span_that_is_counted_on_has_whole_seconds(span: timedelta, text: str) -> None:
    assert whole_span_text(span) == text


def test_a_moment_has_its_date_unless_it_is_of_today() -> None:
    assert moment_text(at(1), NOW) == "12:00:01 UTC"
    assert moment_text(NOW.replace(year=1), NOW) == "0001-01-01 12:00:00 UTC"


def test_a_moved_timer_is_explained_by_its_newest_due_time() -> None:
    timer = replace(scheduled_timer(due_s=5, generation=3), position=Position(1, 3))

    assert said(timer).text == "Due in 5 s; nothing is wrong."
