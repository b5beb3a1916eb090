"""What each endpoint does and what is told where there is no answer, whatever the transport."""

import json
from datetime import datetime
from typing import Any

import pytest

from tests.support.explanations import explanations
from tests.support.timers import ACME, at, schedule
from timer_client import wire
from timer_client.subjects import Subjects
from timer_service import __version__
from timer_service.adapters.endpoints import (
    ENDPOINTS,
    UNEXPECTED,
    Answer,
    AnswerTooLarge,
    ApiError,
    Asked,
    error_of,
    extra_cost,
)
from timer_service.domain.errors import (
    BusUnavailable,
    RequestRefused,
    StoreBusy,
    StoreFailed,
    TimerNotFound,
)
from timer_service.domain.messages import Trace
from timer_service.ports.health import Health, Recent
from timer_service.testing import ManualClock, MemoryEventBus, MemoryTimerStore
from timer_service.timers import Timers

NAMES = {endpoint.name: endpoint for endpoint in ENDPOINTS}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Office:
    """The use cases over a memory store, and somebody who asks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryTimerStore()
        self.woken_for: list[datetime] = []
        self.timers = Timers(
            instance="here-1",
            store=self.store,
            source=MemoryEventBus(self.clock, Subjects("timer"), stream_created_us=2),
            clock=self.clock,
            wake_for=lambda due_at, _: self.woken_for.append(due_at),
            accept_clock_step=lambda: 2.5,
            broker=lambda: "127.0.0.1:4222 (2.12.1)",
            health=lambda: Health(stuck=None, problems={"disk": "full"}),
            recent=lambda: Recent(1.5, 2.0, 0.01, None),
            counted=lambda _: None,
            explain=explanations(self.store, self.clock).explain,
        )

    async def ask(self, name: str, max_bytes: int = 1_000_000, **body: Any) -> Answer:
        endpoint = NAMES[name]
        request = wire.read_request(endpoint.request, json.dumps(body).encode())
        return await endpoint.handler(self.timers, Asked(ACME, request, Trace(PARENT, None), max_bytes))

    async def keep(self, count: int) -> None:
        await self.store.apply([schedule(f"order-{n}", n, number=n) for n in range(1, count + 1)], at(0))


async def test_schedule_answers_with_the_timer_and_wakes_the_worker() -> None:
    office = Office()

    answer = await office.ask(
        "schedule", serviceCallId="order-1", dueAt="2026-01-01T13:01:00+01:00", correlationId="request-1"
    )

    assert answer.outcome == "scheduled"
    assert json.loads(answer.body) == {
        "outcome": "scheduled",
        "timer": {
            "tenantId": "acme",
            "serviceCallId": "order-1",
            "state": "Scheduled",
            "dueAt": "2026-01-01T12:01:00.000Z",
            "generation": 1,
            "registeredAt": "2026-01-01T12:00:00.000Z",
            "correlationId": "request-1",
            "traceparent": PARENT,
        },
    }
    assert office.woken_for == [at(60)]


async def test_a_delay_that_begins_within_a_millisecond_is_not_a_bit_shorter() -> None:
    office = Office()
    office.clock.advance(0.0004)

    await office.ask("schedule", serviceCallId="order-1", delayMs=60_000)

    assert office.woken_for == [at(60.001)]


async def test_a_timer_that_was_cancelled_before_is_cancelled() -> None:
    office = Office()
    await office.keep(1)

    outcomes = [(await office.ask("cancel", serviceCallId="order-1")).outcome for _ in range(2)]

    assert outcomes == ["cancelled", "cancelled"]


async def test_get_shows_a_timer_or_says_that_there_is_none() -> None:
    office = Office()
    await office.keep(1)

    answer = await office.ask("get", serviceCallId="order-1")

    assert wire.read_value(wire.GetAnswer, json.loads(answer.body)).timer.due_at == at(1)
    with pytest.raises(TimerNotFound):
        await office.ask("get", serviceCallId="order-2")


async def test_a_page_leads_on_until_there_is_no_more() -> None:
    office = Office()
    await office.keep(5)
    found: list[str] = []
    cursor: dict[str, Any] = {}

    for _ in range(3):
        page = json.loads((await office.ask("list", limit=2, **cursor)).body)
        found += [timer["serviceCallId"] for timer in page["timers"]]
        cursor = {"cursor": page["cursor"]} if "cursor" in page else {}

    assert found == [f"order-{n}" for n in range(1, 6)]
    assert cursor == {}


async def test_a_page_that_is_too_large_is_cut_but_never_empty() -> None:
    office = Office()
    await office.keep(50)

    pages = [json.loads((await office.ask("list", max_bytes=size)).body) for size in (10_000, 4_000, 1)]

    assert [len(page["timers"]) for page in pages] == [50, 16, 1]
    assert ["cursor" in page for page in pages] == [False, True, True]


async def test_the_status_says_what_there_is_and_leaves_out_what_is_not_known() -> None:
    office = Office()
    await office.store.apply([schedule("due", -1.5), schedule("later", 60, number=2)], at(-2))

    answer = await office.ask("status")

    assert json.loads(answer.body) == {
        "instance": "here-1",
        "version": __version__,
        "broker": "127.0.0.1:4222 (2.12.1)",
        "problems": {"disk": "full"},
        "pending": 2,
        "backlog": 1,
        "oldestOverdueSeconds": 1.5,
        "nextDueAt": "2026-01-01T12:01:00.000Z",
        "databaseBytes": 0,
        "commandsPerSecond": 1.5,
        "firedPerSecond": 2.0,
        "latenessP50Seconds": 0.01,
    }


async def test_a_step_of_the_clock_that_is_accepted_makes_the_worker_look() -> None:
    office = Office()

    answer = await office.ask("clock-accept")

    assert json.loads(answer.body) == {"instance": "here-1", "acceptedStepSeconds": 2.5}
    # Of both sinks.
    assert office.woken_for == [office.clock.now()] * 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (wire.WireError("invalid", "dueAt: is required"), ApiError("400", "dueAt: is required")),
        (RequestRefused("secret"), ApiError("400", RequestRefused.public)),
        (TimerNotFound("order-1"), ApiError("404", "there is no timer 'order-1'")),
        (StoreBusy("/var/lib: locked"), ApiError("503", "try again: the store is busy")),
        (BusUnavailable("nats://host"), ApiError("503", "try again: the broker is away")),
        (AnswerTooLarge("it has 9 bytes"), ApiError("500", "it has 9 bytes")),
        (StoreFailed("/var/lib: I/O error"), ApiError("500", "the service cannot go on")),
        (ValueError("secret"), UNEXPECTED),
    ],
)
def test_every_error_has_its_code_and_tells_nothing_of_the_inside(error: Exception, told: ApiError) -> None:
    assert error_of(error) == told


@pytest.mark.parametrize(("limit", "cost"), [(1, 0), (19, 0), (20, 1), (500, 25)])
def test_a_long_list_counts_as_several_requests(limit: int, cost: int) -> None:
    assert extra_cost(wire.ListRequest(limit=limit)) == cost


def test_any_other_request_counts_once() -> None:
    assert extra_cost(wire.GetRequest(serviceCallId="order-1")) == 0
