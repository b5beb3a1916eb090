"""Where an event is stored on JetStream, and which consumers have read it."""

from datetime import datetime, timedelta
from typing import Any, Final

from timer_client.wire import DUE_TIME_REACHED, TIMER_EXPIRED, parse_time
from timer_service.adapters.nats.looking_back import (
    LOOK_PREFIX,
    Stored,
    StreamReader,
    filters_of,
    subjects_overlap,
)
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.messages import Event, TimerExpired
from timer_service.ports.event_trail import Reader, Reading, Trail

BEFORE: Final = timedelta(seconds=2)
"""The broker's clock may be behind ours by this much."""
MAX_LOOKED_AT: Final = 2_000
"""Events among which one is looked for; in a larger burst it is not found."""


class NatsEventTrail:
    """The event trail on JetStream."""

    def __init__(self, options: NatsOptions, reader: StreamReader) -> None:
        self._reader = reader
        self._stream = options.streams.events
        self._subjects = options.subjects

    async def follow(self, event: Event) -> Trail:
        """Look for the event by its id, from when it was handled on; then ask who has read it."""
        kind = TIMER_EXPIRED if isinstance(event, TimerExpired) else DUE_TIME_REACHED
        subject = self._subjects.event(event.tenant_id, kind)
        read, _ = await self._reader.read(
            self._stream, subject, first=event.at - BEFORE, limit=MAX_LOOKED_AT, headers_only=True
        )
        found = next((each for each in read if each.headers.get("Nats-Msg-Id") == event.id_text), None)
        if found is None:
            return Trail(self._stream, None)
        readers = [
            Reader(name, _reading(consumer, found), _names(filters_of(consumer), event.tenant_id))
            for consumer in await self._reader.consumers(self._stream)
            if not (name := str(consumer.get("name", ""))).startswith(LOOK_PREFIX)
            and any(subjects_overlap(each, subject) for each in filters_of(consumer))
        ]
        return Trail(self._stream, found.sequence, tuple(sorted(readers, key=lambda reader: reader.name)))


def _reading(consumer: dict[str, Any], found: Stored) -> Reading:
    config = consumer.get("config", {})
    delivered = int(consumer.get("delivered", {}).get("stream_seq", 0))
    floor = int(consumer.get("ack_floor", {}).get("stream_seq", 0))
    if config.get("deliver_policy", "all") != "all" and _created(consumer) > found.stored_at:
        return Reading.BEGAN_LATER
    if floor >= found.sequence or (config.get("ack_policy") == "none" and delivered >= found.sequence):
        return Reading.ACKNOWLEDGED
    if delivered < found.sequence:
        return Reading.WAITING
    return Reading.DELIVERED if consumer.get("num_ack_pending", 0) else Reading.ACKNOWLEDGED


def _created(consumer: dict[str, Any]) -> datetime:
    return parse_time(str(consumer.get("created", "1970-01-01T00:00:00Z")))


def _names(filters: Any, tenant_id: str) -> bool:
    return all(tenant_id in str(each).split(".") for each in filters)
