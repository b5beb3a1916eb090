"""A session with the broker, across every loss of connection: connect, prepare, watch, and begin again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.nats.complaints import Complaints, reason
from timer_service.adapters.nats.connecting import PING_INTERVAL_S, Connector, close
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.outage import Outage
from timer_service.adapters.nats.stream_watch import LOOK_INTERVAL_S, StreamWatch
from timer_service.adapters.nats.streams import WantedStream, ensure_stream
from timer_service.domain.errors import TransientError
from timer_service.waiting import Backoff, Over, unless, within

FIRST_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 2.0
WATCH_INTERVAL_S: Final = 1.0
RECOVERY_PAUSE_S: Final = 0.2
ANSWER_TIMEOUT_S: Final = 5
STEP_TIMEOUT_S: Final = 30.0
"""For what the watch asks of the broker: each question has a limit, but not its place in nats-py's queue."""

_FAILURES: Final = (NatsError, OSError, TimeoutError)


class SessionPart(Protocol):
    """Something that works over whichever connection there is."""

    async def start(self, client: TolerantClient) -> None:
        """Begin on a connection; begin again if it has already begun on this one.

        Raises NatsError, OSError or TransientError: it is tried again.
        """
        ...

    def lost(self) -> None:
        """Stop waiting for what can no longer come."""
        ...


class CommandPart(SessionPart, Protocol):
    """The part whose failure is known by its silence, so that it has to be looked after."""

    async def keep_up(self, client: TolerantClient) -> None:
        """Make up for what was lost on the way."""
        ...

    async def stop(self) -> None:
        """End on a connection that stands."""
        ...


@dataclass(frozen=True, slots=True)
class SessionMeans:
    """What a session is made with: the client, the time that has passed, how often it looks and waits."""

    make_client: Callable[[], TolerantClient] = TolerantClient
    elapsed_s: Callable[[], float] = time.monotonic
    watch_interval_s: float = WATCH_INTERVAL_S
    look_interval_s: float = LOOK_INTERVAL_S
    answer_timeout_s: int = ANSWER_TIMEOUT_S
    step_timeout_s: float = STEP_TIMEOUT_S
    ping_interval_s: int = PING_INTERVAL_S


USUAL_MEANS: Final = SessionMeans()


class Signals:
    """What the parts tell the session."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        """The connection or the consumer is gone."""
        self.stream_missing = asyncio.Event()
        """No stream takes what we publish."""


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session serves: each part begins once its stream is there."""

    sending: Sequence[tuple[WantedStream, SessionPart]]
    """What only publishes. It goes first, because it also works where commands cannot be received."""
    receiving: tuple[WantedStream, CommandPart]
    complained_to: Sequence[Callable[[Exception], None]]
    """Who has to know what the broker complains of."""


class Session:
    """One connection after another.

    A lost connection is never repaired but replaced: a new client, streams and consumer ensured again. One
    path serves the first connect, a broker restart, expired credentials and a half-dead socket alike.
    """

    def __init__(
        self,
        options: NatsOptions,
        parts: SessionParts,
        outage: Outage,
        signals: Signals,
        chance: Callable[[], float],
        connected: Callable[[], None] = lambda: None,
        means: SessionMeans = USUAL_MEANS,
    ) -> None:
        self._options = options
        self._parts = parts
        self._commands = parts.receiving[1]
        self._attached: list[SessionPart] = []
        self._outage = outage
        self._signals = signals
        self._chance = chance
        self._connected = connected
        self._means = means
        self.connector = Connector(
            options.connect,
            chance,
            self.error_reported,
            self._on_closed,
            make_client=means.make_client,
            ping_interval_s=means.ping_interval_s,
        )
        self.streams = StreamWatch()
        self._complaints = Complaints(means.elapsed_s)
        self._complaint: str | None = None
        self._client: TolerantClient | None = None
        """The connection, once all parts work on it."""
        self._newest: TolerantClient | None = None
        """The connection that was made last, whatever has become of it."""
        self._stopping = False

    @property
    def server(self) -> str | None:
        """The server that we are connected to, with its version."""
        client = self._client
        if client is None or client.connected_url is None:
            return None
        version = client.connected_server_version
        address = client.connected_url.netloc.rpartition("@")[2]
        return f"{address} ({version.major}.{version.minor}.{version.patch})"

    def attach(self, part: SessionPart) -> None:
        """Have a part start on every connection, once streams and consumer are there."""
        self._attached.append(part)

    def stop(self) -> None:
        """Connect no more. A flag, because nats-py swallows a cancellation now and then."""
        self._stopping = True
        self._signals.over.set()

    async def keep(self) -> None:
        """Connect, stay connected, connect again; until we stop."""
        backoff = self._backoff()
        while not self._stopping:
            try:
                client = await self.connector.connect()
            except _FAILURES as error:
                self._outage.begin(reason(error))
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._newest = client
            try:
                await self._serve(client)
            except (NatsError, OSError) as error:
                self._outage.begin(reason(error))
            finally:
                self._lose()
                self.connector.learn(client)
                await close(client)

    async def _serve(self, client: TolerantClient) -> None:
        """Use one connection until it is lost."""
        backoff, begun = self._backoff(), set[SessionPart]()
        while not client.is_closed and not self._stopping:
            self._signals.over.clear()
            self._complaint = None
            try:
                await self._prepare(client)
            except (*_FAILURES, TransientError) as error:
                # Where a right is missing the broker complains beside the request, which only times out.
                self._outage.begin(self._complaint or reason(error))
                await self._pause(backoff.next_s())
                continue
            backoff.reset()
            self._client = client
            for part in self._attached:
                if part not in begun:
                    begun.add(part)
                    await part.start(client)
            self._outage.end(self.server)
            self._connected()
            await self._watch(client)
            await self._commands.stop()
            # The consumer or a stream is gone but the broker is not: do not ask too often.
            await asyncio.sleep(RECOVERY_PAUSE_S)

    async def _prepare(self, client: TolerantClient) -> None:
        """Start all parts, but give up at once when the session is over."""
        try:
            await unless(self._signals.over, self._start_parts(client))
        except Over:
            raise NatsError("the connection was lost") from None

    async def _start_parts(self, client: TolerantClient) -> None:
        jetstream = self._options.jetstream(client)
        for wanted, part in (*self._parts.sending, self._parts.receiving):
            # The stream first: before it is there, every publication would be rejected.
            await self._ensure(jetstream, wanted)
            await part.start(client)

    async def _ensure(self, jetstream: JetStreamContext, *wanted: WantedStream) -> None:
        for stream in wanted:
            self.streams.look(await ensure_stream(jetstream, stream, self._options.replicas))

    async def _watch(self, client: TolerantClient) -> None:
        """Keep pulls going and streams in place until the connection or the consumer is gone."""
        # Whatever is asked at that moment stays unanswered: to wait for it would only prolong the outage.
        with suppress(Over):
            await unless(self._signals.over, self._look_after(client))

    async def _look_after(self, client: TolerantClient) -> None:
        jetstream = self._options.jetstream(client)
        sending = [wanted for wanted, _ in self._parts.sending]
        every = [*sending, self._parts.receiving[0]]
        look_at = self._means.elapsed_s() + self._means.look_interval_s
        while True:
            is_missing = self._signals.stream_missing.is_set()
            if is_missing or self._means.elapsed_s() >= look_at:
                self._signals.stream_missing.clear()
                look_at = self._means.elapsed_s() + self._means.look_interval_s
                try:
                    await within(
                        self._means.step_timeout_s,
                        self._ensure(jetstream, *(sending if is_missing else every)),
                    )
                except (NatsError, TimeoutError):
                    # Only to look can wait: as long as messages come and go, the session is not over.
                    if is_missing:
                        raise
            await asyncio.sleep(self._means.watch_interval_s)
            self._complaints.look()
            # A client can look connected on a dead socket: only an answer proves it alive. nats-py's own
            # limit begins only once the question has found a place in its queue.
            timeout_s = self._means.answer_timeout_s
            await within(timeout_s + 1, client.flush(timeout=timeout_s))
            await within(self._means.step_timeout_s, self._commands.keep_up(client))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._signals.over.wait()

    def _backoff(self) -> Backoff:
        return Backoff(self._chance, FIRST_RETRY_S, MAX_RETRY_S)

    async def _on_closed(self) -> None:
        if self._newest is not None and not self._newest.is_closed:
            return  # The end of an earlier one, whose dead socket took its time: it was replaced long ago.
        if self._client is not None:
            self._outage.begin("the connection was lost")
        self._lose()
        self._signals.over.set()

    def _lose(self) -> None:
        self._client = None
        served = [part for _, part in (*self._parts.sending, self._parts.receiving)]
        for part in (*served, *self._attached):
            part.lost()

    async def error_reported(self, error: Exception) -> None:
        """Say what the broker complains of, and tell those who wait for an answer that will not come."""
        if self.connector.is_connecting:
            return  # `keep` tells of it.
        self._complaint = reason(error)
        self._complaints.note(error)
        for tell in self._parts.complained_to:
            tell(error)
