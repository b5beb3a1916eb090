"""What is gathered before a timer is explained, and who is told how much of it."""

import json
from dataclasses import replace

from tests.support.explanations import MemoryLetterBox, MemoryTrail, explanations
from tests.support.rest import open_site
from tests.support.timers import ACME, GLOBEX, at, call, schedule
from timer_service.domain.cause import Cause
from timer_service.domain.errors import BusUnavailable, RightMissing
from timer_service.ports.event_trail import Reader, Reading, Trail
from timer_service.ports.health import Health
from timer_service.ports.letter_box import Letter
from timer_service.testing import ManualClock, MemoryTimerStore

READERS = (
    Reader("acme-billing", Reading.ACKNOWLEDGED, of_tenant=True),
    Reader("everybody", Reading.WAITING, of_tenant=False),
)
LETTER = Letter(
    7,
    ACME,
    at(0),
    "invalid",
    "dueAt has no zone",
    "timer.commands.acme.ScheduleTimer",
    b'{"payload": {"serviceCallId": "order-1"}}',
)


async def fired() -> tuple[MemoryTimerStore, ManualClock]:
    store, clock = MemoryTimerStore(), ManualClock()
    await store.apply([schedule("order-1", 1)], at(0))
    timer = store.timers[ACME, call("order-1")]
    store.timers[timer.key] = replace(timer, state=type(timer.state).REACHED, reached_at=at(1.004))
    return store, clock


async def test_a_tenant_is_not_told_of_the_consumers_of_others() -> None:
    store, clock = await fired()
    trail = MemoryTrail(Trail("TIMER_EVENTS", 8812, READERS))
    use_case = explanations(store, clock, trail=trail)

    told = await use_case.explain(ACME, call("order-1"))
    operator = await use_case.explain(ACME, call("order-1"), for_operator=True)

    assert told.text == "Fired 4 ms late; stored as TIMER_EVENTS 8812; acme-billing has acknowledged it."
    assert "everybody has not read it yet" in operator.text
    assert [event.at for event in trail.followed] == [at(1.004)] * 2


async def test_a_letter_of_another_tenant_explains_nothing() -> None:
    letters = MemoryLetterBox(LETTER)
    use_case = explanations(MemoryTimerStore(), ManualClock(), letters=letters)

    mine, theirs = [await use_case.explain(tenant, call("order-1")) for tenant in (ACME, GLOBEX)]

    assert mine.text == "No such timer; letter 7 names this id: dueAt has no zone."
    assert theirs.cause is Cause.NOT_FOUND


async def test_what_cannot_be_looked_at_is_said_and_stops_nothing() -> None:
    missing = RightMissing("grant it to publish to $JS.API.X")
    for error, told in (
        (BusUnavailable("10.0.0.1 is away"), BusUnavailable.public),
        (missing, missing.public),
    ):
        use_case = explanations(MemoryTimerStore(), ManualClock(), letters=MemoryLetterBox(error=error))

        found = await use_case.explain(ACME, call("order-1"))
        operator = await use_case.explain(ACME, call("order-1"), for_operator=True)

        assert (found.cause, found.facts.unknown) == (Cause.NOT_FOUND, (f"dead letters: {told}",))
        assert operator.facts.unknown == (f"dead letters: {error}",)


async def test_an_overdue_timer_is_explained_by_what_the_service_waits_for() -> None:
    store, clock = MemoryTimerStore(), ManualClock()
    await store.apply([schedule("order-1", 1)], at(0))
    clock.advance(42)
    away = Health(None, {"broker": "no server answers"})

    found = await explanations(
        store, clock, health=away, since={"broker": at(3), "store": None}, has_broker=True
    ).explain(ACME, call("order-1"))

    assert found.text == "Overdue by 41 s: the broker has been away since 12:00:03 UTC."
    assert (found.since, found.detail) == (at(3), "no server answers")


async def test_rest_explains_without_a_broker_and_knows_no_other_tenant() -> None:
    async with open_site() as site:
        await site.ask("PUT", "/v1/timers/order%2F1", {"dueAt": "2026-01-01T12:02:00Z"})

        mine = await site.ask("GET", "/v1/timers/order%2F1/explanation")
        theirs = await site.ask("GET", "/v1/timers/order%2F1/explanation", tenant=GLOBEX)

    assert (mine.status, theirs.status) == (200, 200)
    assert (mine.json["cause"], mine.json["text"]) == (
        "not_due",
        (
            "Due in 2 min; it would be late now: the service has no broker (TIMER_BROKER_URL=none), "
            "and this timer has no callback."
        ),
    )
    assert mine.json["timer"]["serviceCallId"] == "order/1"
    assert theirs.json["cause"] == "not_found"
    assert "timer" not in json.loads(theirs.body)


async def test_an_explanation_counts_as_many_requests() -> None:
    async with open_site(rate=1, burst=25) as site:
        answers = [await site.ask("GET", "/v1/timers/order-1/explanation") for _ in range(3)]

    assert [answer.status for answer in answers] == [200, 200, 429]
