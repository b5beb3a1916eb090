"""What time it is for a worker of durable functions, and what it answers to the broker."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest
from nats.aio.client import Client

from tests.support.flows import Overheard
from tests.support.patience import PATIENCE_S
from timer_client import Firing, Timers
from timer_client.errors import Fenced, Later
from timer_client.flows import Flows, MemoryJournal, Worker
from timer_client.testing import FakeTimers

DAY_MS = 86_400_000


def test_an_answer_that_was_overtaken_by_an_event_does_not_turn_time_back() -> None:
    worker = Worker(Flows(FakeTimers(), MemoryJournal(), name="billing"))
    asked_at = -1.0
    worker.learn(3 * DAY_MS)

    worker.learn(0, asked_at=asked_at)

    assert worker.now_ms() >= 3 * DAY_MS


def test_an_answer_is_news_if_nothing_else_was_heard_since_it_was_asked_for() -> None:
    timers = FakeTimers()
    worker = Worker(Flows(timers, MemoryJournal(), name="billing"))
    worker.learn(3 * DAY_MS)

    worker.learn(2 * DAY_MS, asked_at=timers.stopwatch())

    assert worker.now_ms() < 3 * DAY_MS


def test_of_several_answers_the_one_that_took_least_counts() -> None:
    timers = FakeTimers()
    worker = Worker(Flows(timers, MemoryJournal(), name="billing"))
    now = timers.stopwatch()

    for took_s in (0.7, 0.003, 0.5):
        worker.learn(DAY_MS, asked_at=now - took_s)

    assert worker.now_ms() == DAY_MS + 3


def test_time_that_an_answer_took_counts_so_that_no_sleep_is_too_short() -> None:
    timers = FakeTimers()
    worker = Worker(Flows(timers, MemoryJournal(), name="billing"))

    worker.learn(DAY_MS, asked_at=timers.stopwatch() - 2)

    assert worker.now_ms() == DAY_MS + 2_000


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (None, [b"+ACK"]),
        (Fenced("another worker has it"), []),
        (Later(timedelta(seconds=4)), [b'-NAK {"delay": 4000000000}']),
    ],
)
async def test_whoever_is_fenced_neither_acknowledges_nor_gives_back(
    error: Exception | None, answers: list[bytes]
) -> None:
    fake, said = FakeTimers(), list[tuple[str, bytes]]()
    timers = Timers(cast(Client, Overheard(fake._service.broker, said)), tenant=fake.tenant)
    is_handled = asyncio.Event()

    async def handle(_: Firing) -> None:
        is_handled.set()
        if error is not None:
            raise error

    async with timers.consume("flow-billing", handle):
        await fake.schedule("order-42", timedelta())
        async with asyncio.timeout(PATIENCE_S):
            await is_handled.wait()

    assert [body for subject, body in said if subject.startswith("$JS.ACK.")] == answers
