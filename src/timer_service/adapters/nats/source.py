"""Commands from the durable consumer of the command stream."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from nats.errors import Error as NatsError

from timer_service.adapters.nats.backlog import BacklogQuestions
from timer_service.adapters.nats.client import Outgoing, TolerantClient
from timer_service.adapters.nats.complaints import reason
from timer_service.adapters.nats.inbox import Inbox, NatsBatch
from timer_service.adapters.nats.letters import ROOM_FOR_PARKED
from timer_service.adapters.nats.options import JETSTREAM_TIMEOUT_S, NatsOptions
from timer_service.adapters.nats.outage import Outage
from timer_service.adapters.nats.positions import CommandPositions, StreamEnd, read_stream_end
from timer_service.adapters.nats.replies import Replies
from timer_service.adapters.nats.streams import ensure_consumer
from timer_service.domain.errors import BusUnavailable, TransientError
from timer_service.domain.messages import Position, TenantId
from timer_service.ports.command_source import Backlog

MIN_ACK_PENDING: Final = 1_000
BATCHES_IN_HAND: Final = 8
"""Requested, buffered and worked on together; the consumer's max_ack_pending allows this many, besides those
that wait for letters."""

MeetHistory = Callable[[int], Awaitable[None]]


class NatsCommandSource:
    """The command source on JetStream."""

    def __init__(
        self,
        options: NatsOptions,
        outage: Outage,
        positions: CommandPositions,
        questions: BacklogQuestions,
        inbox: Inbox,
        replies: Replies,
        meet_history: MeetHistory | None = None,
    ) -> None:
        self._options = options
        self._outage = outage
        self._positions = positions
        self._questions = questions
        self._inbox = inbox
        self._replies = replies
        self._meet_history = meet_history
        self._client: TolerantClient | None = None
        self._silence: str | None = None

    @property
    def problem(self) -> str | None:
        """Why no command can be received now: no broker, no stream or no consumer on it.

        An outage lasts until everything works on the new connection: who reads here that nothing is wrong may
        send a request, and requests are listened for last.
        """
        is_usable = self._inbox.is_open and self._outage.since is None
        return self._silence if is_usable else self._outage.reason

    async def last_position(self) -> Position:
        """Ask the broker for the newest command in the stream."""
        client = self._client
        if client is None:
            raise self._outage.error()
        if self._silence is not None:
            raise BusUnavailable(self._silence)  # It is asked every second: nobody else waits for that.
        try:
            return await self._positions.newest(lambda: self._stream_end(client))
        except (NatsError, OSError) as error:
            raise BusUnavailable(_silent(error)) from error

    async def last_seen_position(self) -> Position:
        """Return the newest position that was delivered here, or applied by any instance."""
        return await self._positions.seen()

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        """Ask the broker which commands wait."""
        if self._client is None:
            raise self._outage.error()
        return await self._questions.ask(beyond, self._replies.handled_sequence)

    async def receive(self) -> NatsBatch:
        """Wait for messages and return those at hand, at least one and at most a batch."""
        return await self._inbox.receive()

    async def start(self, client: TolerantClient) -> None:
        """Ensure the consumer, agree with the store about the past, and pull."""
        options = self._options
        acknowledged = await ensure_consumer(
            options.jetstream(client),
            options,
            max_ack_pending=max(MIN_ACK_PENDING, BATCHES_IN_HAND * options.batch_size) + ROOM_FOR_PARKED,
        )
        if self._meet_history is not None:
            # Before the first pull: nothing is acknowledged until the store has agreed.
            await self._meet_history(acknowledged)
        await self._questions.start(client)
        await self._learn_positions(client)
        # Only now: before the positions are known, a reply could end another message under its sequence.
        self._replies.start(client)
        await self._inbox.start(client)
        self._client, self._silence = client, None

    async def keep_up(self, client: TolerantClient) -> None:
        """Look whether the stream has lost anything, and ask for what is missing of pulls."""
        try:
            # A stream can silently lose its tail when another server takes it over.
            await self._learn_positions(client)
            self._silence = None
        except NatsError as error:
            self._silence = _silent(error)
        except TransientError:
            pass  # The store's: it tells of its own outages, and the next look comes soon.
        await self._inbox.top_up()

    async def stop(self) -> None:
        """Pull no more on a connection that stands."""
        await self._inbox.stop()

    def lost(self) -> None:
        """Let go of a connection that is gone."""
        self._client = None
        self._questions.lost()
        self._replies.lost()
        self._inbox.lost()

    async def _stream_end(self, client: TolerantClient) -> StreamEnd:
        subject = f"{self._options.api_prefix}.STREAM.INFO.{self._options.streams.commands}"
        return read_stream_end((await client.request(subject, timeout=JETSTREAM_TIMEOUT_S)).data)

    async def _learn_positions(self, client: TolerantClient) -> None:
        """Find out whether the stream has lost anything, and ask again for what waited for the answer."""
        await self._positions.learn(lambda: self._stream_end(client), self._questions.stored_us)
        if again := self._positions.take_aside():
            await client.publish_all([Outgoing(reply, b"-NAK") for reply in again])


def _silent(error: BaseException) -> str:
    return f"the command stream does not answer: {reason(error)}"
