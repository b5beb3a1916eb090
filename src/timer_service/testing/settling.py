"""Whether everything has happened that follows from the present moment, by the broker's own counters."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import ConsumerInfo
from nats.js.errors import NotFoundError

from timer_client.subjects import StreamNames
from timer_service.domain.errors import TransientError
from timer_service.ports.clock import Clock
from timer_service.wiring.stores import Store

ANSWER_TIMEOUT_S: Final = 30.0
"""How long the broker may take to answer; on a busy machine nothing hurries."""
MAX_CONSUMERS: Final = 10_000
"""Durable consumers of the events that are looked at."""
_PAGE: Final = 256


@dataclass(frozen=True, slots=True)
class Look:
    """What is still under way at one moment."""

    unsettled: tuple[str, ...]
    """Who has not finished, in words; empty if nothing is left to do at this time."""
    progress: tuple[int, ...]
    """Changes whenever anything happens."""
    next_due_at: datetime | None = None
    published: int = 0
    """How many events the stream has ever had."""


class Settling:
    """Asks broker and store whether commands are taken, due timers fired and events acknowledged."""

    def __init__(self, client: Client, prefix: str, store: Store, clock: Clock) -> None:
        self._jetstream = client.jetstream(timeout=ANSWER_TIMEOUT_S)
        self._names = StreamNames.of(prefix)
        self._store = store
        self._clock = clock
        self._last: dict[str, int] = {}
        self._last_of = -1

    async def look(self) -> Look:
        """Return what is under way."""
        try:
            return await self._look()
        except (TransientError, NatsError, TimeoutError) as error:
            return Look((f"no answer yet: {error or type(error).__name__}",), ())

    async def _look(self) -> Look:
        """Return the first that is found to be under way.

        In this order: what a consumer has sent before it acknowledged is in the command stream by the time
        that is looked at, and applied by the time the store is. If a timer fired meanwhile, the event stream
        has grown, and the look does not count.
        """
        overdue = (await self._store.count(self._clock.now())).overdue
        if overdue:
            return Look((f"timers that are due and have not fired: {overdue}",), (overdue,))
        callbacks = (await self._store.deliveries.count(self._clock.now())).overdue
        if callbacks:
            return Look((f"callbacks that are due or under way: {callbacks}",), (callbacks,))
        before = await self.published()
        lagging, acknowledged = await self._consumers(before)
        if lagging:
            return Look(tuple(lagging), (before, acknowledged))
        commands = (await self._jetstream.stream_info(self._names.commands)).state
        if commands.messages:
            waiting = f"commands that wait to be taken: {commands.messages}"
            return Look((waiting,), (before, acknowledged, commands.last_seq, commands.messages))
        counts = await self._store.count(self._clock.now())
        attempts = await self._store.deliveries.due(self._clock.now(), limit=1)
        after = await self.published()
        if counts.overdue or attempts.found or after != before:
            return Look(("timers that came due just now",), (after, acknowledged, counts.overdue))
        moments = [at for at in (counts.next_due_at, attempts.next_attempt_at) if at is not None]
        return Look((), (), min(moments, default=None), after)

    async def published(self) -> int:
        """Return how many events the stream has ever had; none before the service has made it."""
        try:
            return (await self._jetstream.stream_info(self._names.events)).state.last_seq
        except NotFoundError:
            return 0

    async def _consumers(self, last_sequence: int) -> tuple[list[str], int]:
        """Return which durable consumers have events left, and a number that grows as they go on."""
        lagging, acknowledged = [], 0
        for offset in range(0, MAX_CONSUMERS, _PAGE):
            page = await self._jetstream.consumers_info(self._names.events, offset=offset)
            for info in page:
                if info.config.durable_name:
                    acknowledged += info.ack_floor.consumer_seq if info.ack_floor else 0
                    if (text := await self._lag(info, last_sequence)) is not None:
                        lagging.append(text)
            if len(page) < _PAGE:
                break
        return lagging, acknowledged

    async def _lag(self, info: ConsumerInfo, last_sequence: int) -> str | None:
        waiting, unacknowledged = info.num_pending or 0, info.num_ack_pending or 0
        if not waiting and not unacknowledged:
            # The counters follow a publication a moment later: what was delivered tells more.
            delivered = info.delivered.stream_seq if info.delivered else 0
            if delivered >= last_sequence or delivered >= await self._newest_for(info, last_sequence):
                return None
            waiting = 1
        return (
            f"consumer {info.name} (events not delivered to it: {waiting}, "
            f"delivered and not acknowledged: {unacknowledged})"
        )

    async def _newest_for(self, info: ConsumerInfo, last_sequence: int) -> int:
        """Return the sequence of the newest event that a consumer wants."""
        config = info.config
        filters = [
            *(config.filter_subjects or ()),
            *([config.filter_subject] if config.filter_subject else ()),
        ]
        if not filters:
            return last_sequence
        if self._last_of != last_sequence:
            self._last_of = last_sequence
            self._last.clear()
        for subject in filters:
            if subject not in self._last:
                self._last[subject] = await self._newest(subject)
        return max(self._last[subject] for subject in filters)

    async def _newest(self, subject: str) -> int:
        try:
            return (await self._jetstream.get_last_msg(self._names.events, subject)).seq or 0
        except NotFoundError:
            return 0
