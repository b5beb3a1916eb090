"""A service without a broker: no commands come in and no events go out."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from timer_service.domain.epochs import newest_position
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import Event, Position, ServiceCallId, TenantId
from timer_service.ports.broker_view import InstanceSeen, ReaderSeen, StreamSeen
from timer_service.ports.command_source import NOTHING_WAITS, Backlog, CommandBatch
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.ports.event_trail import Trail
from timer_service.ports.letter_box import Letter, LettersFound
from timer_service.ports.stream_epochs import StreamEpochs

_NOWHERE: Final = PublishResult(
    Published.REJECTED, "there is no broker (TIMER_BROKER_URL=none), and this timer has no callback"
)


class NoCommandSource:
    """A command source from which nothing ever comes."""

    problem = None

    def __init__(self, epochs: StreamEpochs) -> None:
        self._epochs = epochs

    async def last_position(self) -> Position:
        """Return the newest position that was ever applied: the store may have known a broker before."""
        return newest_position(await self._epochs.stream_epochs())

    async def last_seen_position(self) -> Position:
        """Return the same: nobody else knows of anything newer."""
        return await self.last_position()

    async def backlog(self, _beyond: Mapping[TenantId, int]) -> Backlog:
        """Return that nothing waits."""
        return NOTHING_WAITS

    async def receive(self) -> CommandBatch:
        """Wait forever."""
        await asyncio.Event().wait()
        raise AssertionError("nothing ever comes")


class NoEventSink:
    """An event sink that accepts nothing: what is due on the bus is held back until there is a broker."""

    problem = None

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        """Reject every event, so that timers with a callback beside it are not held up."""
        return [_NOWHERE] * len(events)


class NoLetterBox:
    """A letter box in which nothing ever lies: without a broker nothing is refused but answered."""

    async def page(self, _tenant_id: TenantId | None, _before: int | None, _limit: int) -> LettersFound:
        """Return nothing."""
        return LettersFound()

    async def naming(self, _tenant_id: TenantId, _service_call_id: ServiceCallId) -> LettersFound:
        """Return nothing."""
        return LettersFound()

    async def get(self, _number: int) -> Letter | None:
        """Return nothing."""
        return None


class NoEventTrail:
    """An event trail that leads nowhere."""

    async def follow(self, _event: Event) -> Trail:
        """Say that nobody can be asked: the event went to a broker that the service had before."""
        raise BusUnavailable("there is no broker (TIMER_BROKER_URL=none)")


class NoBrokerView:
    """A look around where there is nothing to see."""

    async def streams(self) -> Sequence[StreamSeen]:
        """Return nothing."""
        return ()

    async def readers(self) -> Sequence[ReaderSeen]:
        """Return nobody."""
        return ()

    async def instances(self) -> Sequence[InstanceSeen]:
        """Return nobody: without a broker nobody can be asked."""
        return ()


class NoBroker:
    """Stands in for a connection to a broker."""

    server: None = None
    away_since: None = None

    def __init__(self, epochs: StreamEpochs) -> None:
        self.source = NoCommandSource(epochs)
        self.sink = NoEventSink()
        self.letter_box = NoLetterBox()
        self.event_trail = NoEventTrail()
        self.view = NoBrokerView()
        self.warnings: dict[str, str] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do nothing: there is no connection to keep."""
        yield
