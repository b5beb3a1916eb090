"""System shows what is around the service, and waits for nobody."""

import asyncio
from collections.abc import Sequence

from timer_service.adapters.http.pages.broker_desk import FRESH_S, Around, BrokerDesk
from timer_service.domain.errors import BusUnavailable
from timer_service.ports.broker_view import InstanceSeen, ReaderSeen, StreamSeen
from timer_service.testing import ManualClock

STREAM = StreamSeen("TIMER_EVENTS", 2, 100, 1)
READER = ReaderSeen("acme-billing", ("timer.events.acme.>",), 2, 0, 0)
INSTANCE = InstanceSeen("one", "1.0", True, 0.0, None)


class Broker:
    """A broker whose instances answer when the test says so."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.is_away = False
        self.looks = 0

    async def streams(self) -> Sequence[StreamSeen]:
        self.looks += 1
        if self.is_away:
            raise BusUnavailable("not connected")
        return (STREAM,)

    async def readers(self) -> Sequence[ReaderSeen]:
        return (READER,)

    async def instances(self) -> Sequence[InstanceSeen]:
        await self.answering.wait()
        return (INSTANCE,)


async def test_what_is_known_is_shown_while_others_are_still_asked() -> None:
    broker, clock = Broker(), ManualClock()
    desk = BrokerDesk(broker, lambda: clock.elapsed_s, wait_s=60)
    async with desk.running():
        first = await desk.around()
        broker.answering.set()
        while (then := await desk.around()).instances is None:
            await asyncio.sleep(0)

    assert first == Around((STREAM,), (READER,))
    assert then == Around((STREAM,), (READER,), (INSTANCE,))


async def test_a_look_is_shared_for_a_while_and_a_broker_that_is_away_is_said() -> None:
    broker, clock = Broker(), ManualClock()
    broker.answering.set()
    desk = BrokerDesk(broker, lambda: clock.elapsed_s, wait_s=60)
    async with desk.running():
        seen = [await desk.around() for _ in range(3)]
        while desk._asked.is_set():
            await asyncio.sleep(0)
        looks = broker.looks
        broker.is_away = True
        clock.advance(FRESH_S)
        later = await desk.around()

    assert [each.streams for each in seen] == [(STREAM,)] * 3
    assert looks == 1
    assert (later.streams, later.trouble) == ((STREAM,), ("not connected",))
