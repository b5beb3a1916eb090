"""A flood of errors is not a flood of lines."""

from types import SimpleNamespace
from typing import Any

import structlog
from nats.errors import Error, SlowConsumerError

from timer_service.adapters.nats.complaints import MAX_KINDS, OTHERS, QUIET_S, Complaints
from timer_service.testing import ManualClock


def dropped(subject: str) -> SlowConsumerError:
    subscription: Any = SimpleNamespace(subject="timer.api.*.get")
    return SlowConsumerError(subject=subject, reply="_INBOX.1", sid=1, sub=subscription)


async def test_dropped_messages_are_said_once_and_counted() -> None:
    clock = ManualClock()
    told = Complaints(lambda: clock.elapsed_s)
    with structlog.testing.capture_logs() as logs:
        for number in range(10_000):
            told.note(dropped(f"timer.api.tenant-{number}.get"))
        told.look()
        clock.advance(QUIET_S)
        told.look()

    detail = "messages arrive on timer.api.*.get faster than they are handled: some are dropped"
    assert logs == [
        {"event": "broker.error", "log_level": "warning", "detail": detail},
        {"event": "broker.error_passed", "log_level": "info", "detail": detail, "times": 10_000},
    ]


async def test_what_is_over_and_begins_again_is_said_again() -> None:
    clock = ManualClock()
    told = Complaints(lambda: clock.elapsed_s)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            told.note(Error("nats: maximum connections exceeded"))
            clock.advance(QUIET_S)
            told.look()

    assert [line["event"] for line in logs] == ["broker.error"] * 3


async def test_many_kinds_of_errors_have_a_bound() -> None:
    told = Complaints(lambda: 0.0)
    with structlog.testing.capture_logs() as logs:
        for number in range(10 * MAX_KINDS):
            told.note(Error(f'nats: permissions violation for publish to "timer.events.{number}"'))

    assert len(logs) == MAX_KINDS + 1
    assert logs[-1]["detail"] == OTHERS
