"""What time it is for a worker of durable functions: what the service said last."""

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
