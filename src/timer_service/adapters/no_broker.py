"""A service without a broker: no commands come in and no events go out."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from timer_service.domain.epochs import newest_position
from timer_service.domain.messages import Event, Position, TenantId
from timer_service.ports.command_source import NOTHING_WAITS, Backlog, CommandBatch
from timer_service.ports.event_sink import Published, PublishResult
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
    """An event sink that takes nothing: what is due on the bus is held back until there is one again."""

    problem = None

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        """Reject every event, so that timers with a callback beside it are not held up."""
        return [_NOWHERE] * len(events)


class NoBroker:
    """What stands in the place of a connection to a broker."""

    server: None = None

    def __init__(self, epochs: StreamEpochs) -> None:
        self.source = NoCommandSource(epochs)
        self.sink = NoEventSink()
        self.warnings: dict[str, str] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do nothing: there is no connection to keep."""
        yield
