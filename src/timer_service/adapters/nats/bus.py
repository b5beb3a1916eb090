"""Commands from and events to NATS JetStream, across every loss of connection."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from timer_client.subjects import StreamNames, Subjects
from timer_service.adapters import codec
from timer_service.adapters.nats.backlog import BacklogQuestions
from timer_service.adapters.nats.complaints import Complaints
from timer_service.adapters.nats.connecting import Connector, close
from timer_service.adapters.nats.incoming import Buffer, Incoming, read_incoming
from timer_service.adapters.nats.letters import LONGEST_DELAY_S, ROOM_FOR_PARKED, Letters
from timer_service.adapters.nats.positions import CommandPositions, StreamEnd, read_stream_end
from timer_service.adapters.nats.publisher import Publisher
from timer_service.adapters.nats.pull import CommandPull, read_delivery
from timer_service.adapters.nats.session import SessionPart
from timer_service.adapters.nats.stream_watch import LOOK_INTERVAL_S, StreamWatch
from timer_service.adapters.nats.streams import (
    CONSUMER_NAME,
    ensure_consumer,
    ensure_streams,
)
from timer_service.adapters.nats.tolerant_client import Outgoing, TolerantClient
from timer_service.addresses import without_credentials
from timer_service.domain.errors import BusUnavailable, TransientError
from timer_service.domain.messages import DueTimeReached, Position, TenantId
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import Backlog, Refusal
from timer_service.ports.event_sink import PublishResult
from timer_service.ports.stream_epochs import StreamEpochs
from timer_service.waiting import Over, unless

MIN_ACK_PENDING: Final = 1_000
BATCHES_IN_HAND: Final = 8
"""Requested, buffered and worked on together; the consumer's max_ack_pending allows so many and those that
wait for letters."""
JETSTREAM_TIMEOUT_S: Final = 5.0
FIRST_RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 2.0
WATCH_INTERVAL_S: Final = 1.0
RECOVERY_PAUSE_S: Final = 0.2
ANSWER_TIMEOUT_S: Final = 5

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """How to reach the broker and what to call things on it."""

    connect: Mapping[str, Any]
    """Arguments of `nats.connect`: servers and credentials."""
    prefix: str = "timer"
    domain: str | None = None
    replicas: int = 1
    batch_size: int = 500
    ack_wait_s: float = 10.0


class NatsEventBus:
    """The event bus on JetStream.

    A lost connection is never mended but replaced: a new client, streams and consumer ensured again. One
    path serves the first connect, a broker restart, expired credentials and a half-dead socket alike.
    """

    def __init__(
        self,
        options: NatsOptions,
        clock: Clock,
        chance: Callable[[], float],
        epochs: StreamEpochs,
        connected: Callable[[], None] = lambda: None,
        letters_dropped: Callable[[], None] = lambda: None,
        meet_history: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._options = options
        self._connected = connected
        self._meet_history = meet_history
        self._clock = clock
        self._chance = chance
        self._subjects = Subjects(options.prefix)
        self._names = StreamNames.of(options.prefix)
        self._client: TolerantClient | None = None
        self._publisher: Publisher | None = None
        self._questions: BacklogQuestions | None = None
        self._handled_sequence = 0
        self._pull: CommandPull | None = None
        self.positions = CommandPositions(epochs, clock)
        self._buffer = Buffer(options.batch_size)
        self.letters = Letters(self._subjects, self._names.commands, clock, self.answer, letters_dropped)
        self._stopping = False
        self._session_over = asyncio.Event()
        self._stream_missing = asyncio.Event()
        self._connector = Connector(options.connect, chance, self._on_error, self._on_closed)
        self._attached: list[SessionPart] = []
        self._told: str | None = None
        self._complaint: str | None = None
        self._complaints = Complaints()
        self._streams = StreamWatch()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep a session with the broker in the background."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._keep_session(), name="nats.keep_session")
            writer = tasks.create_task(self.letters.keep_writing(), name="nats.letters")
            try:
                yield
            finally:
                await self._give_back()
                # A flag as well, because nats-py swallows a cancellation now and then.
                self._stopping = True
                self._session_over.set()
                keeper.cancel()
                writer.cancel()

    async def _give_back(self) -> None:
        """Let the broker deliver what we have not begun with to whoever comes next, at once."""
        unbegun = [*self._buffer.take_all(), *self.letters.take_all()]
        await self.answer([(message, b"-NAK") for message in unbegun])

    def attach(self, part: SessionPart) -> None:
        """Have a part start on every connection from now on, once streams and consumer are there."""
        self._attached.append(part)

    @property
    def problem(self) -> str | None:
        """Why nothing can be sent or received now: no broker, or no streams and consumer on it."""
        if self._client is not None and self._pull is not None:
            return None
        return self._told or "not connected yet"

    @property
    def warnings(self) -> dict[str, str]:
        """What a person should see to although messages come and go."""
        found = {
            "streams": self._streams.problem,
            "dead letters": self.letters.problem,
            "commands": self.positions.warning,
        }
        return {part: text for part, text in found.items() if text is not None}

    @property
    def server(self) -> str | None:
        """The server that we are connected to, with its version."""
        client = self._client
        if client is None or client.connected_url is None:
            return None
        version = client.connected_server_version
        address = client.connected_url.netloc.rpartition("@")[2]
        return f"{address} ({version.major}.{version.minor}.{version.patch})"

    async def last_position(self) -> Position:
        """Ask the broker for the newest command in the stream."""
        client = self._client
        if client is None:
            raise BusUnavailable(self._told or "not connected to the broker yet")
        try:
            return await self.positions.newest(lambda: self._stream_end(client))
        except (NatsError, OSError) as error:
            raise BusUnavailable(f"the command stream does not answer: {_reason(error)}") from error

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        """Ask the broker which commands wait."""
        if self._questions is None:
            raise BusUnavailable(self._told or "not connected to the broker yet")
        return await self._questions.ask(beyond, self._handled_sequence)

    async def receive(self) -> "_NatsBatch":
        """Wait for messages and return those at hand, at least one and at most a batch."""
        await self._buffer.wait()
        if self._pull is not None:
            with suppress(NatsError, OSError):
                await self._pull.top_up()
        # Taken without an await, so that cancelling loses nothing.
        return _NatsBatch(self, self._buffer.take())

    async def publish(self, events: Sequence[DueTimeReached]) -> list[PublishResult]:
        """Publish all events, then wait for their confirmations."""
        if self._publisher is None:
            raise BusUnavailable(self._told or "not connected to the broker yet")
        outgoing = []
        for event in events:
            message_id = str(event.id)
            subject, body = self._subjects.event(event.tenant_id), codec.encode_event(event, message_id)
            outgoing.append(Outgoing(subject, body, codec.event_headers(event, message_id)))
        return await self._publisher.publish(outgoing)

    async def _keep_session(self) -> None:
        """Connect, stay connected, connect again; until we stop."""
        pause = FIRST_RETRY_S
        while not self._stopping:
            try:
                client = await self._connector.connect()
            except (NatsError, OSError, TimeoutError) as error:
                self._tell_unavailable(_reason(error))
                await asyncio.sleep(pause * (0.5 + self._chance() / 2))
                pause = min(pause * 2, LONGEST_RETRY_S)
                continue
            pause = FIRST_RETRY_S
            try:
                await self._serve(client)
            finally:
                self._client = self._publisher = self._pull = self._questions = None
                self.letters.connected(None)
                self._connector.learn(client)
                await close(client)

    async def _serve(self, client: TolerantClient) -> None:
        """Use one connection until it is lost."""
        publisher = Publisher(
            client,
            frozenset({self._names.events, self._names.dead_letters}),
            stream_missing=self._stream_missing.set,
        )
        questions = BacklogQuestions(client, self._api_prefix, self._names.commands, self._subjects)
        jetstream = client.jetstream(timeout=JETSTREAM_TIMEOUT_S, **self._domain)
        try:
            await publisher.start()
            await questions.start()
            pause, to_start = FIRST_RETRY_S, list(self._attached)
            while not client.is_closed and not self._stopping:
                self._session_over.clear()
                self._complaint = None
                try:
                    await self._unless_over(self._prepare(client, jetstream))
                except (NatsError, OSError, TimeoutError, TransientError) as error:
                    # Where a right is missing the broker complains beside the request, which only times out.
                    self._tell_unavailable(self._complaint or _reason(error))
                    await self._pause(pause)
                    pause = min(pause * 2, LONGEST_RETRY_S)
                    continue
                pause = FIRST_RETRY_S
                # Only now: before the streams are there, every publication would be rejected.
                self._client, self._publisher, self._questions = client, publisher, questions
                self.letters.connected(publisher, client.max_payload)
                while to_start:
                    await to_start.pop().start(client)
                self._tell_available()
                await self._watch(client, jetstream)
                await self._stop_pulling()
                # The consumer or a stream is gone but the broker is not: do not ask too often.
                await asyncio.sleep(RECOVERY_PAUSE_S)
        except (NatsError, OSError) as error:
            self._tell_unavailable(_reason(error))
        finally:
            publisher.connection_lost()
            questions.connection_lost()
            for part in self._attached:
                part.lost()

    async def _prepare(self, client: TolerantClient, jetstream: JetStreamContext) -> None:
        """Ensure streams and consumer, and start to pull."""
        options = self._options
        await self._ensure_streams(jetstream)
        acknowledged = await ensure_consumer(
            jetstream,
            self._subjects,
            self._names,
            ack_wait_s=options.ack_wait_s,
            max_ack_pending=max(MIN_ACK_PENDING, BATCHES_IN_HAND * options.batch_size) + ROOM_FOR_PARKED,
        )
        if self._meet_history is not None:
            # Before the first pull: nothing is acknowledged until the store has agreed.
            await self._meet_history(acknowledged)
        self._handled_sequence = 0
        await self._learn_positions(client)
        self._pull = CommandPull(
            client,
            f"{self._api_prefix}.CONSUMER.MSG.NEXT.{self._names.commands}.{CONSUMER_NAME}",
            batch_size=options.batch_size,
            deliver=self._deliver,
            has_room=self._buffer.has_room,
            consumer_lost=self._consumer_lost,
        )
        await self._pull.start()

    async def _stream_end(self, client: TolerantClient) -> StreamEnd:
        subject = f"{self._api_prefix}.STREAM.INFO.{self._names.commands}"
        return read_stream_end((await client.request(subject, timeout=JETSTREAM_TIMEOUT_S)).data)

    async def _learn_positions(self, client: TolerantClient) -> None:
        """Find out whether the stream has lost anything, and ask again for what waited for the answer."""
        await self.positions.learn(lambda: self._stream_end(client))
        if again := self.positions.take_aside():
            await client.publish_all([Outgoing(reply, b"-NAK") for reply in again])

    def _deliver(self, message: Msg) -> None:
        delivery = read_delivery(message.reply)
        position = self.positions.of(delivery)
        if position is None:
            self.positions.set_aside(message.reply)
        else:
            times, epoch = delivery.times_delivered, self.positions.epoch
            self._buffer.put(read_incoming(self._subjects, message, position, times, epoch))

    async def _ensure_streams(self, jetstream: JetStreamContext) -> None:
        options = self._options
        found = await ensure_streams(
            jetstream,
            self._subjects,
            self._names,
            replicas=options.replicas,
            letters_repeated_within_s=options.ack_wait_s + LONGEST_DELAY_S,
        )
        self._streams.look(found.configs, found.findings)

    async def _watch(self, client: TolerantClient, jetstream: JetStreamContext) -> None:
        """Wait until the connection or the consumer is gone; keep pulls going and streams in place."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + LOOK_INTERVAL_S
        while not self._session_over.is_set():
            is_missing = self._stream_missing.is_set()
            if is_missing or loop.time() >= look_at:
                self._stream_missing.clear()
                look_at = loop.time() + LOOK_INTERVAL_S
                try:
                    await self._ensure_streams(jetstream)
                except (NatsError, TimeoutError):
                    # Only to look can wait: as long as messages come and go, the session is not over.
                    if is_missing:
                        raise
            await self._pause(WATCH_INTERVAL_S)
            self._complaints.look()
            if self._pull is not None and not self._session_over.is_set():
                # A client can look connected on a dead socket: only an answer proves it alive.
                await client.flush(timeout=ANSWER_TIMEOUT_S)
                # A stream can lose its tail without a word, where another server takes it over.
                with suppress(NatsError, TransientError):
                    await self._learn_positions(client)
                await self._pull.top_up()

    async def _stop_pulling(self) -> None:
        pull, self._pull = self._pull, None
        if pull is not None and self._client is not None and not self._client.is_closed:
            with suppress(NatsError, OSError):
                await pull.stop()

    async def _unless_over(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step, but give it up at once when the session is over."""
        try:
            await unless(self._session_over, step)
        except Over:
            raise NatsError("the connection was lost") from None

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._session_over.wait()

    @property
    def _api_prefix(self) -> str:
        return f"$JS.{self._options.domain}.API" if self._options.domain else "$JS.API"

    @property
    def _domain(self) -> dict[str, str]:
        return {"domain": self._options.domain} if self._options.domain else {}

    async def answer(self, replies: Sequence[tuple[Incoming, bytes]]) -> None:
        """Send acknowledgements; losing one only means that its message comes again."""
        client = self._client
        if client is None:
            return
        # Since a stream began again or lost something, a sequence may be another message's: leave it alone.
        known = [pair for pair in replies if self.positions.is_current(pair[0].epoch)]
        self._handled_sequence = max([self._handled_sequence, *(m.position.sequence for m, _ in known)])
        with suppress(NatsError, OSError, TimeoutError):
            outgoing = [Outgoing(incoming.reply, word) for incoming, word in known]
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await client.publish_all(outgoing)

    def _consumer_lost(self, detail: str) -> None:
        self._tell_unavailable(f"the command consumer is gone: {detail}")
        self._session_over.set()

    async def _on_closed(self) -> None:
        if self._publisher is not None:
            self._publisher.connection_lost()
            self._tell_unavailable("the connection was lost")
        if self._questions is not None:
            self._questions.connection_lost()
        self._session_over.set()

    async def _on_error(self, error: Exception) -> None:
        if self._connector.is_connecting:
            return  # keep_session tells of it.
        self._complaint = _reason(error)
        self._complaints.note(error)
        if self._publisher is not None:
            self._publisher.error_reported(error)
        if self._questions is not None:
            self._questions.error_reported(error)

    def _tell_unavailable(self, reason: str) -> None:
        """Say it once per change of state, not per try."""
        if self._told is None:
            servers = [without_credentials(url) for url in self._options.connect["servers"]]
            log.warning("broker.unavailable", detail=reason, servers=servers)
        self._told = reason

    def _tell_available(self) -> None:
        self._told = None
        self._connected()
        log.info("broker.connected", server=self.server)


class _NatsBatch:
    """Messages that were at hand together."""

    def __init__(self, bus: NatsEventBus, messages: Sequence[Incoming]) -> None:
        self._bus = bus
        self._accepted = [m for m in messages if m.command is not None]
        self._refused = [m for m in messages if m.command is None]
        self.commands = [m.command for m in messages if m.command is not None]
        self.redelivered = sum(m.times_delivered > 1 for m in messages)

    async def acknowledge(self) -> None:
        await self._bus.answer([(message, b"+ACK") for message in self._accepted])

    async def dead_letter(self) -> Sequence[Refusal]:
        return await self._bus.letters.take(self._refused)


def _reason(error: BaseException) -> str:
    if isinstance(error, NoServersError):
        return "no server answers"
    if isinstance(error, ServiceUnavailableError):
        return f"JetStream does not answer: is it enabled? ({error.description or 'no responders'})"
    return str(error) or type(error).__name__
