"""What a tenant does: schedule and cancel timers, look at them, wait for them, handle their firings.

Every other language does the same by docs/messages.md.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from nats.aio.client import Client

from timer_client import due as times
from timer_client.connection import check_ids
from timer_client.consumer import RETRY_DELAYS, Consumer, Handler, Options, running
from timer_client.durable import Durable
from timer_client.errors import ConsumerConflict, TimerCancelled, TimerNotFound
from timer_client.events import Listening, Reached, watch_reached
from timer_client.firing import Firing
from timer_client.requests import Timer, TimerRequests
from timer_client.waiting import wait_for


class Timers(TimerRequests):
    """One tenant's timers, over a NATS connection that the caller owns."""

    def __init__(
        self, connection: Client, *, tenant: str, prefix: str = "timer", domain: str | None = None
    ) -> None:
        super().__init__(connection, tenant=tenant, prefix=prefix, domain=domain)
        self._listening = Listening(connection, self._subjects.events_of(tenant))
        self.stopwatch: Callable[[], float] = time.monotonic
        """Seconds that pass as they do for the service; on a virtual clock they stand while it stands."""
        self._asleep: set[str] = set()
        self._consuming: set[str] = set()

    def watch(self, *, subscribed: Callable[[], None] = lambda: None) -> AsyncIterator[Reached]:
        """Yield each event as it is published; for those that must not be missed there is `consume`.

        `subscribed` is called from when no event can be missed.
        """
        return watch_reached(self._connection, self._subjects.event(self.tenant), subscribed)

    async def wait(self, service_call_id: str, *, timeout: timedelta | None = None) -> Timer:  # noqa: ASYNC109 - a timedelta
        """Wait until a timer has ended and return it; raise TimeoutError if that takes too long."""
        check_ids(self.tenant, service_call_id)
        limit_s = None if timeout is None else times.span_ms("timeout", timeout) / 1000
        try:
            async with asyncio.timeout(limit_s):
                return await wait_for(service_call_id, self.get, self._listening, patient=False)
        except TimeoutError as error:
            raise TimeoutError(f"{service_call_id} has not ended within {timeout}") from error

    async def sleep(self, name: str, span: timedelta) -> Timer:
        """Sleep until a timer of this name fires; a restarted process continues the same sleep.

        The first due time counts: a later sleep under the same name ends when that is reached.
        """
        times.span_ms("span", span)
        check_ids(self.tenant, name)
        if name in self._asleep:
            raise ValueError(f"a sleep named {name!r} is already under way: give every sleep its own name")
        self._asleep.add(name)
        try:
            # A command, so that the sleep begins now, also while the service is away.
            await self.schedule(name, span, if_absent=True)
            timer = await wait_for(name, self.get, self._listening, patient=True)
        finally:
            self._asleep.discard(name)
        if timer.state == "Cancelled":
            raise TimerCancelled(f"the sleep {name!r} was cancelled")
        return timer

    @asynccontextmanager
    async def consume(
        self,
        name: str,
        handler: Handler,
        *,
        concurrency: int = 10,
        prefetch: int = 0,
        expired: Handler | None = None,
        drop_stale: bool = False,
        ack_wait: timedelta | None = None,
        retry_delays: Sequence[timedelta] = RETRY_DELAYS,
        grace: timedelta = timedelta(seconds=30),
    ) -> AsyncIterator[Consumer]:
        """Handle every firing with `handler` while inside the block; the name is what survives a restart.

        Those that expired go to `expired`, if it is given. Workers of the same name share the firings. At the
        end of the block no more are taken, those in hand are finished within `grace`, and the rest is given
        back for others.
        """
        options = Options(
            concurrency, prefetch, retry_delays, grace, self._is_stale if drop_stale else None, expired
        )
        ack_wait_s = None if ack_wait is None else times.span_ms("ack_wait", ack_wait) / 1000
        if ack_wait_s == 0:
            raise ValueError("ack_wait must be longer than zero (got timedelta(0))")
        durable = Durable(
            name, self._streams.events, self._subjects, self.tenant, ack_wait_s, expired is not None
        )
        if name in self._consuming:
            raise ConsumerConflict(f"{name!r} is already being consumed: raise its concurrency instead")
        self._consuming.add(name)
        try:
            bind = partial(self._bind, durable)
            consumer = Consumer(
                self._connection,
                f"{self._api_prefix}.CONSUMER.MSG.NEXT.{durable.stream}.{durable.durable_name}",
                self.tenant,
                name,
                handler,
                options,
                await bind(),
            )
            async with running(consumer, bind):
                yield consumer
        finally:
            self._consuming.discard(name)

    async def _bind(self, durable: Durable) -> float:
        return await self._answered(f"{durable.stream}.{durable.durable_name}", durable.bind(self._jetstream))

    async def _is_stale(self, firing: Firing) -> bool:
        """Return whether the timer was moved or cancelled since; one that is gone was not."""
        try:
            timer = await self.get(firing.service_call_id)
        except TimerNotFound:
            return False
        return timer.generation > firing.generation or timer.state == "Cancelled"
