"""Deliver as badly as a broker may: twice, out of order, and what is out of date as well."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from timer_service.adapters.nats.client import Outgoing
from timer_service.adapters.nats.sink import NatsEventSink
from timer_service.adapters.system import chance
from timer_service.domain.messages import EPOCH, Event
from timer_service.ports.event_sink import PublishResult

MAX_LATE: Final = 1_000
"""Copies that are kept for a later batch."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_MESSAGE_ID: Final = re.compile(rb"Nats-Msg-Id: [^\r]*")


class HostileEventSink(NatsEventSink):
    """The event sink that a consumer has to stand: whatever it publishes is allowed by the promises.

    Every event comes at least twice, under one envelope id but beyond the broker's own de-duplication; events
    of a batch are shuffled; copies come again after the events of the next batch; and where a timer was
    moved, the firing of the due time that it had before comes too, before and after the one that counts.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._late: list[Outgoing] = []
        self._copies = 0

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        """Publish each event, and whatever may come beside it; only the event itself has to arrive."""
        messages = [self.outgoing(event) for event in events]
        beside = [self._copy(message) for message in messages]
        beside += [self._copy(self.outgoing(_stale(event))) for event in events if event.generation > 1]
        late, self._late = self._late, [self._copy(message) for message in beside][:MAX_LATE]
        numbered = [*enumerate(messages), *((None, message) for message in (*beside, *late))]
        numbered.sort(key=lambda _: chance())
        results = await self.send([message for _, message in numbered])
        found = {number: result for (number, _), result in zip(numbered, results, strict=True)}
        return [found[number] for number in range(len(messages))]

    def _copy(self, message: Outgoing) -> Outgoing:
        """Return the same message in the broker's eyes another one."""
        self._copies += 1
        named = f"Nats-Msg-Id: hostile-{id(self)}-{self._copies}".encode()
        return Outgoing(message.subject, message.body, _MESSAGE_ID.sub(named, message.head))


def _stale(event: Event) -> Event:
    """Return the firing of the due time before: it was on its way when the timer was moved."""
    due_at = event.due_at - _MILLISECOND if event.due_at > EPOCH else event.due_at
    return replace(event, generation=event.generation - 1, due_at=due_at)
