"""A consumer as another team would write it: plain nats-py, a durable pull consumer, by docs/messages.md."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.support import messages
from tests.support.patience import PATIENCE_S
from timer_service.waiting import owned

Handler = Callable[[dict[str, Any]], Awaitable[None]]


class Team:
    """Another team's service: sends commands, and reacts to events."""

    def __init__(self, client: Client, prefix: str) -> None:
        self.client = client
        self.prefix = prefix
        self.jetstream = client.jetstream(timeout=PATIENCE_S)
        self.events_stream = f"{prefix.upper()}_EVENTS"

    async def schedule(self, call: str, due_at: datetime, tenant: str = "acme") -> None:
        """Send ScheduleTimer and return once the broker has it."""
        body = messages.encode(messages.schedule(tenant, call, due_at))
        await self.jetstream.publish(f"{self.prefix}.commands.{tenant}.ScheduleTimer", body)

    async def add_consumer(
        self, name: str, tenant: str | None = None, deliver: DeliverPolicy = DeliverPolicy.ALL
    ) -> None:
        """Create a durable consumer from which nobody pulls yet."""
        subject = f"{self.prefix}.events.{tenant}.>" if tenant else None
        await self.jetstream.add_consumer(
            self.events_stream,
            ConsumerConfig(
                name=name,
                durable_name=name,
                ack_policy=AckPolicy.EXPLICIT,
                filter_subject=subject,
                deliver_policy=deliver,
            ),
        )

    @asynccontextmanager
    async def consuming(self, name: str, handler: Handler, tenant: str | None = None) -> AsyncIterator[None]:
        """Pull events one by one, and acknowledge each after its handler has returned."""
        await self.add_consumer(name, tenant)
        # It cancels again what swallows a cancellation, as nats-py does now and then.
        async with owned(self._pull(name, handler)):
            yield

    async def _pull(self, name: str, handler: Handler) -> None:
        subscription = await self.jetstream.pull_subscribe_bind(name, self.events_stream)
        while True:
            try:
                [message] = await subscription.fetch(1, timeout=30)
            except NatsTimeout:
                continue
            await handler(json.loads(message.data)["payload"])
            await message.ack()


@asynccontextmanager
async def team(broker_url: str, prefix: str) -> AsyncIterator[Team]:
    """Connect as another team."""
    client = await nats.connect(broker_url)
    try:
        yield Team(client, prefix)
    finally:
        await client.close()
