"""Each source and sink with a view of their broker from the other side: what a tenant sends and sees."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RawStreamMsg
from nats.js.errors import NotFoundError

from tests.support.broker import NatsServer
from tests.support.patience import PATIENCE_S
from tests.support.proxy import Wire
from timer_client.subjects import Subjects
from timer_service.adapters.nats.bus import USUAL_MEANS, NatsBus, NatsMeans
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.messages import EPOCH
from timer_service.ports.command_source import CommandSource
from timer_service.ports.event_sink import EventSink
from timer_service.testing import ManualClock, MemoryEventBus, MemoryTimerStore

BATCH_SIZE = 10


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in a stream."""

    subject: str
    message_id: str
    body: dict[str, Any]


class Line(Protocol):
    """A source and a sink, and their broker as others see it."""

    @property
    def source(self) -> CommandSource: ...

    @property
    def sink(self) -> EventSink: ...

    @property
    def prefix(self) -> str: ...

    @property
    def stream(self) -> str:
        """The name of the command stream."""
        ...

    async def stream_created_us(self) -> int: ...

    async def send(self, subject: str, body: bytes) -> int:
        """Put a message into the command stream and return its sequence."""
        ...

    async def until_at_hand(self, count: int) -> None:
        """Wait until this many messages are delivered and not yet received from the bus."""
        ...

    async def events(self) -> list[Stored]: ...

    async def letters(self) -> list[Stored]: ...

    async def unfinished(self) -> list[int]:
        """Return the sequences of the commands that are neither acknowledged nor terminated."""
        ...

    def redeliver(self) -> None:
        """Let what was delivered and not acknowledged be delivered again, now or soon."""
        ...

    async def reject(self, tenant: str) -> None:
        """Let the broker take no event of this tenant."""
        ...

    async def fill_events(self) -> None:
        """Let the event stream take nothing more."""
        ...

    async def fill_letters(self) -> None:
        """Let the dead letter stream take nothing more."""
        ...

    async def empty_letters(self) -> None:
        """Let it take letters again."""
        ...

    async def recreate_commands(self) -> None:
        """Delete the command stream and everything in it, and have it made again."""
        ...

    async def cut(self) -> None:
        """Separate the bus from its broker."""
        ...

    async def mend(self) -> None: ...


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until a condition holds."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_S} s for {what}") from None


class MemoryLine:
    """The bus in memory, which is its own broker."""

    prefix = "timer"
    stream = "TIMER_COMMANDS"

    def __init__(self, clock: ManualClock) -> None:
        self.bus = self.source = self.sink = MemoryEventBus(
            clock, Subjects(self.prefix), batch_size=BATCH_SIZE
        )

    async def stream_created_us(self) -> int:
        return self.bus.stream_created_us

    async def send(self, subject: str, body: bytes) -> int:
        return self.bus.send(subject, body)

    async def until_at_hand(self, count: int) -> None:
        assert self.bus._queue.qsize() == count

    async def events(self) -> list[Stored]:
        return [Stored(subject, key, json.loads(body)) for key, (subject, body) in self.bus.events.items()]

    async def letters(self) -> list[Stored]:
        return [
            Stored(subject, str(sequence), json.loads(body))
            for sequence, (subject, body) in self.bus.letters.items()
        ]

    async def unfinished(self) -> list[int]:
        return sorted(self.bus.pending)

    def redeliver(self) -> None:
        self.bus.redeliver()

    async def reject(self, tenant: str) -> None:
        self.bus.rejected_subjects.add(self.bus.subjects.event(tenant))

    async def fill_events(self) -> None:
        self.bus.events_full = True

    async def fill_letters(self) -> None:
        self.bus.letters_full = True

    async def empty_letters(self) -> None:
        self.bus.letters_full = False

    async def recreate_commands(self) -> None:
        self.bus.stream_created_us += 1
        self.bus.pending.clear()
        self.bus._last_sequence = 0

    async def cut(self) -> None:
        self.bus.connected = False

    async def mend(self) -> None:
        self.bus.connected = True


class NatsLine:
    """The bus on a real nats-server, behind a wire that can be cut."""

    def __init__(self, bus: NatsBus, prefix: str, client: Client, wire: Wire, dropped: list[int]) -> None:
        self.bus = bus
        self.source = bus.source
        self.sink = bus.sink
        self.client = client
        self.dropped = dropped
        """One entry for each letter that was dropped."""
        self.prefix = prefix
        self.stream = f"{prefix.upper()}_COMMANDS"
        self.jetstream: JetStreamContext = client.jetstream(timeout=PATIENCE_S)
        self.wire = wire

    async def stream_created_us(self) -> int:
        created = (await self.jetstream.stream_info(self.stream)).created
        assert created is not None
        return round((created - EPOCH).total_seconds() * 1_000_000)

    async def send(self, subject: str, body: bytes) -> int:
        return int((await self.jetstream.publish(subject, body)).seq)

    async def until_at_hand(self, count: int) -> None:
        async def delivered() -> bool:
            return len(self.bus.inbox.buffer) == count

        await until(delivered, f"{count} messages to be delivered")

    async def events(self) -> list[Stored]:
        return await self._read(f"{self.prefix.upper()}_EVENTS")

    async def letters(self) -> list[Stored]:
        return await self._read(f"{self.prefix.upper()}_DEADLETTER")

    async def unfinished(self) -> list[int]:
        return [sequence async for sequence, _ in self._messages(self.stream)]

    async def _read(self, stream: str) -> list[Stored]:
        found = []
        async for _, message in self._messages(stream):
            headers = message.headers or {}
            found.append(
                Stored(message.subject or "", headers["Nats-Msg-Id"], json.loads(message.data or b""))
            )
        return found

    async def _messages(self, stream: str) -> AsyncIterator[tuple[int, RawStreamMsg]]:
        state = (await self.jetstream.stream_info(stream)).state
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
            with suppress(NotFoundError):
                yield sequence, await self.jetstream.get_msg(stream, sequence)

    def redeliver(self) -> None:
        """Nothing to do: the broker delivers again by itself once the time to acknowledge is over."""

    async def reject(self, tenant: str) -> None:
        name = f"{self.prefix.upper()}_EVENTS"
        config = (await self.jetstream.stream_info(name)).config
        # Every event subject of the tests but this tenant's.
        others = {"acme", "globex", "initech"} - {tenant}
        config.subjects = [f"{self.prefix}.events.{other}.>" for other in sorted(others)]
        await self.jetstream.update_stream(config)

    async def fill_events(self) -> None:
        config = (await self.jetstream.stream_info(f"{self.prefix.upper()}_EVENTS")).config
        await self.jetstream.update_stream(config.evolve(max_bytes=1, discard=DiscardPolicy.NEW))

    async def fill_letters(self) -> None:
        await self.set_letters(max_bytes=1, discard=DiscardPolicy.NEW)

    async def empty_letters(self) -> None:
        await self.set_letters(max_bytes=-1, discard=DiscardPolicy.OLD)

    async def set_letters(self, **limits: Any) -> None:
        """Change the configuration of the dead letter stream."""
        config = (await self.jetstream.stream_info(f"{self.prefix.upper()}_DEADLETTER")).config
        await self.jetstream.update_stream(config.evolve(**limits))

    async def recreate_commands(self) -> None:
        before = await self.stream_created_us()
        await self.jetstream.delete_stream(self.stream)

        async def made_again() -> bool:
            try:
                return await self.stream_created_us() > before and self.source.problem is None
            except NotFoundError:
                return False

        await until(made_again, "the command stream to be made again")

    async def cut(self) -> None:
        await self.wire.cut()

    async def mend(self) -> None:
        await self.wire.mend()
        await self.until_connected()

    async def until_connected(self) -> None:
        async def connected() -> bool:
            return self.source.problem is None

        await until(connected, "the bus to be connected")


@asynccontextmanager
async def memory_line(
    broker: Callable[[], NatsServer], prefix: str, clock: ManualClock, ack_wait_s: float
) -> AsyncIterator[Line]:
    yield MemoryLine(clock)


@asynccontextmanager
async def nats_line(
    broker: Callable[[], NatsServer],
    prefix: str,
    clock: ManualClock,
    ack_wait_s: float,
    batch_size: int = BATCH_SIZE,
    means: NatsMeans = USUAL_MEANS,
) -> AsyncIterator[Line]:
    server = broker()
    wire = Wire(server.port)
    await wire.mend()
    client: Client = await nats.connect(server.url)
    options = NatsOptions(
        connect={"servers": [f"nats://127.0.0.1:{wire.port}"]},
        prefix=prefix,
        batch_size=batch_size,
        ack_wait_s=ack_wait_s,
    )
    try:
        dropped: list[int] = []
        bus = NatsBus(
            options,
            clock,
            lambda: 0.5,
            MemoryTimerStore(),
            letters_dropped=lambda: dropped.append(1),
            means=means,
        )
        async with bus.running():
            line = NatsLine(bus, prefix, client, wire, dropped)
            await line.until_connected()
            yield line
    finally:
        await client.close()
        await wire.cut()


OpenLine = Callable[[Callable[[], NatsServer], str, ManualClock, float], AbstractAsyncContextManager[Line]]

BUSES: dict[str, OpenLine] = {
    "memory": memory_line,
    "nats": nats_line,
    # So small that one event is a batch, too.
    "nats in batches": partial(nats_line, means=NatsMeans(min_batched=1)),
}
