"""Everything that works over one connection to NATS: commands in, events out, letters beside them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from timer_service.adapters.nats.backlog import BacklogQuestions
from timer_service.adapters.nats.broker_view import NatsBrokerView
from timer_service.adapters.nats.event_trail import NatsEventTrail
from timer_service.adapters.nats.inbox import Inbox
from timer_service.adapters.nats.letter_box import NatsLetterBox
from timer_service.adapters.nats.letters import MAX_DELAY_S, LetterLimits, Letters
from timer_service.adapters.nats.looking_back import StreamReader
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.outage import Outage
from timer_service.adapters.nats.positions import CommandPositions
from timer_service.adapters.nats.publisher import CONFIRM_TIMEOUT_S, MIN_BATCHED, Publisher
from timer_service.adapters.nats.replies import Replies
from timer_service.adapters.nats.session import Session, SessionMeans, SessionPart, SessionParts, Signals
from timer_service.adapters.nats.sink import NatsEventSink
from timer_service.adapters.nats.source import MeetHistory, NatsCommandSource
from timer_service.adapters.nats.streams import wanted_streams
from timer_service.ports.clock import Clock
from timer_service.ports.stream_epochs import StreamEpochs


@dataclass(frozen=True, slots=True)
class NatsMeans:
    """What the bus is made with and no operator decides."""

    session: SessionMeans = field(default_factory=SessionMeans)
    confirm_timeout_s: float = CONFIRM_TIMEOUT_S
    min_batched: int = MIN_BATCHED
    letter_limits: LetterLimits = field(default_factory=LetterLimits)
    delays_from: Callable[[], datetime] | None = None
    """From when the delay of a command counts; None for the broker's time of storing."""
    make_sink: Callable[[NatsOptions, Publisher, Outage, Callable[[], bool]], NatsEventSink] = NatsEventSink


USUAL_MEANS: Final = NatsMeans()


class NatsBus:
    """The command source and the event sink on one session with the broker."""

    def __init__(
        self,
        options: NatsOptions,
        clock: Clock,
        chance: Callable[[], float],
        epochs: StreamEpochs,
        *,
        connected: Callable[[], None] = lambda: None,
        letters_dropped: Callable[[], None] = lambda: None,
        meet_history: MeetHistory | None = None,
        means: NatsMeans = USUAL_MEANS,
    ) -> None:
        outage, signals = Outage(options.connect["servers"], clock.now), Signals()
        streams = wanted_streams(options, letters_repeated_within_s=options.ack_wait_s + MAX_DELAY_S)
        published_to = frozenset({streams.events.name, streams.letters.name})
        missing, limit_s = signals.stream_missing.set, means.confirm_timeout_s
        publisher = Publisher(published_to, missing, limit_s, min_batched=means.min_batched)
        questions = BacklogQuestions(options)
        self.positions = positions = CommandPositions(epochs, clock)
        self._replies = replies = Replies(positions)
        self.letters = Letters(options, clock, publisher, replies.send, letters_dropped, means.letter_limits)
        timing = means.session.elapsed_s, means.delays_from
        self.inbox = Inbox(options, positions, replies, self.letters, outage, signals.over, *timing)
        self.sink = means.make_sink(
            options, publisher, outage, lambda: self.session.streams.takes_batches(streams.events.name)
        )
        self.source = NatsCommandSource(
            options, outage, positions, questions, self.inbox, replies, meet_history
        )
        self.reader = reader = StreamReader(options)
        self.letter_box, self.event_trail = NatsLetterBox(options, reader), NatsEventTrail(options, reader)
        self.view = NatsBrokerView(options, reader)
        parts = SessionParts(
            sending=((streams.events, self.sink), (streams.letters, self.letters)),
            receiving=(streams.commands, self.source),
            complained_to=(publisher.error_reported, questions.error_reported, reader.error_reported),
        )
        self.session = Session(options, parts, outage, signals, chance, connected, means.session)
        self.session.attach(reader)
        self._outage = outage

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep a session with the broker in the background."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self.session.keep(), name="nats.keep_session")
            writer = tasks.create_task(self.letters.keep_writing(), name="nats.letters")
            try:
                yield
            finally:
                await self._give_back()
                self.session.stop()
                keeper.cancel()
                writer.cancel()

    async def _give_back(self) -> None:
        """Let the broker deliver what we have not begun to another instance, at once."""
        # Nothing more is asked for, or they and others would come to us again.
        await self.inbox.stop()
        unbegun = [*self.inbox.buffer.take_all(), *self.letters.take_all()]
        await self._replies.send([(message, b"-NAK") for message in unbegun])

    def attach(self, part: SessionPart) -> None:
        """Have a part start on every connection, once streams and consumer are there."""
        self.session.attach(part)

    @property
    def server(self) -> str | None:
        """The server that we are connected to, with its version."""
        return self.session.server

    @property
    def away_since(self) -> datetime | None:
        """Since when the broker cannot be used; None if it can."""
        return self._outage.since

    @property
    def warnings(self) -> dict[str, str]:
        """What a person should look at although messages come and go."""
        found = {
            "streams": self.session.streams.problem,
            "dead letters": self.letters.problem,
            "commands": self.positions.warning,
        }
        return {part: text for part, text in found.items() if text is not None}
