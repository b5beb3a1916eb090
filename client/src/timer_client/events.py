"""Events as they pass: what `watch` yields, and what those who wait for a timer listen to."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from timer_client import wire
from timer_client.cancelling import cancellable
from timer_client.connection import now_ms


@dataclass(frozen=True, slots=True)
class Seen:
    """An event as it came in."""

    envelope: wire.Envelope
    payload: wire.FiringPayload
    body: bytes
    received_ms: int

    @property
    def lateness_ms(self) -> int:
        """Return how long after its due time the event arrived here, by this machine's clock."""
        return self.received_ms - round(self.payload.due_at.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Reached(Seen):
    """A DueTimeReached event as it came in."""

    payload: wire.DueTimeReachedPayload


@dataclass(frozen=True, slots=True)
class Expired(Seen):
    """A TimerExpired event as it came in."""

    payload: wire.TimerExpiredPayload


async def watch_events(
    connection: Client, subject: str, subscribed: Callable[[], None]
) -> AsyncGenerator[Reached | Expired, None]:
    """Yield each event on a subject as it is published."""
    subscription = await connection.subscribe(subject)
    try:
        await _until_told(connection)
        subscribed()
        async for message in subscription.messages:
            received_ms = now_ms()
            try:
                envelope = wire.read_envelope(message.data)
                payload = wire.read_payload(envelope)
            except wire.WireError:
                continue  # Not one of the service's: anybody with the permission can publish here.
            if isinstance(payload, wire.DueTimeReachedPayload):
                yield Reached(envelope, payload, message.data, received_ms)
            elif isinstance(payload, wire.TimerExpiredPayload):
                yield Expired(envelope, payload, message.data, received_ms)
    finally:
        with suppress(NatsError, OSError):  # The connection may be closed by now.
            await subscription.unsubscribe()


async def watch_reached(
    connection: Client, subject: str, subscribed: Callable[[], None]
) -> AsyncIterator[Reached]:
    """Yield each DueTimeReached on a subject as it is published."""
    async with aclosing(watch_events(connection, subject, subscribed)) as events:
        async for seen in events:
            if isinstance(seen, Reached):
                yield seen


class Ear:
    """What one who waits has heard of its timer."""

    def __init__(self) -> None:
        self._heard = asyncio.Event()
        self.firing: wire.FiringPayload | None = None
        """The newest firing that was heard of."""

    def hear(self, firing: wire.FiringPayload) -> None:
        """Keep what was heard and wake who waits."""
        if self.firing is None or firing.generation > self.firing.generation:
            self.firing = firing
        self._heard.set()

    async def listen(self, timeout_s: float) -> None:
        """Return when something was heard, at the latest after this long."""
        self._heard.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._heard.wait()


class Listening:
    """One subscription to a tenant's events, shared by all who wait, and open while somebody does."""

    def __init__(self, connection: Client, subject: str) -> None:
        self._connection = connection
        self._subject = subject
        self._ears: defaultdict[str, list[Ear]] = defaultdict(list)
        self._subscription: Subscription | None = None
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def to(self, service_call_id: str) -> AsyncIterator[Ear]:
        """Listen for the firings of one timer; inside, none is missed while the connection lasts."""
        ear = Ear()
        self._ears[service_call_id].append(ear)
        try:
            async with self._changing:
                if self._subscription is None:
                    self._subscription = await self._connection.subscribe(self._subject, cb=self._on_event)
                    await _until_told(self._connection)
            yield ear
        finally:
            self._ears[service_call_id].remove(ear)
            if not self._ears[service_call_id]:
                del self._ears[service_call_id]
            await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        async with self._changing:
            if not self._ears and self._subscription is not None:
                subscription, self._subscription = self._subscription, None
                with suppress(NatsError, OSError):  # The connection may be closed by now.
                    await subscription.unsubscribe()

    async def _on_event(self, message: Msg) -> None:
        try:
            payload = wire.read_payload(wire.read_envelope(message.data))
        except wire.WireError:
            return
        if isinstance(payload, wire.FiringPayload):
            for ear in self._ears.get(payload.service_call_id, ()):
                ear.hear(payload)


async def _until_told(connection: Client) -> None:
    """Return once the broker has what was said; twice, because nats-py may send a ping ahead of it."""
    with cancellable():
        await connection.flush()
        await connection.flush()
