"""Events to the event stream."""

from collections.abc import Callable, Sequence

from timer_service.adapters import codec
from timer_service.adapters.nats.client import Outgoing, TolerantClient, head_of, head_of_id
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.outage import Outage
from timer_service.adapters.nats.publisher import Publisher
from timer_service.domain.messages import Event
from timer_service.ports.event_sink import PublishResult


class NatsEventSink:
    """The event sink on JetStream; it works wherever the event stream does."""

    def __init__(
        self, options: NatsOptions, publisher: Publisher, outage: Outage, may_batch: Callable[[], bool]
    ) -> None:
        self._subjects = options.subjects
        self._publisher = publisher
        self._outage = outage
        self._may_batch = may_batch
        self.is_open = False

    @property
    def problem(self) -> str | None:
        """Why no event can be sent now: no broker, or no event stream on it."""
        return None if self.is_open else self._outage.reason

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        """Publish all events, then wait for their confirmations."""
        return await self.send([self.outgoing(event) for event in events])

    def outgoing(self, event: Event) -> Outgoing:
        """Return the message of an event."""
        message_id = event.id_text
        subject = self._subjects.event(event.tenant_id, type(event).__name__)
        body = codec.encode_event(event, message_id)
        if event.trace is None:
            return Outgoing(subject, body, head_of_id(message_id))
        return Outgoing(subject, body, head_of(codec.event_headers(event, message_id)))

    async def send(self, messages: Sequence[Outgoing]) -> list[PublishResult]:
        """Send messages to the event stream and wait for what becomes of each."""
        if not self.is_open:
            raise self._outage.error()
        return await self._publisher.publish(messages, batched=self._may_batch())

    async def start(self, client: TolerantClient) -> None:
        """Publish over this connection from now on."""
        await self._publisher.start(client)
        self.is_open = True

    def lost(self) -> None:
        """Publish nothing until there is a connection again."""
        self.is_open = False
        self._publisher.lost()
