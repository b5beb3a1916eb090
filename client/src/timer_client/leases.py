"""Firings that were delivered and not answered: each is a lease, which is kept by signs of life.

The broker gives a firing to another worker unless we keep saying that we are at work. A worker that has lost
one stays silent, because the broker would take its answer for that of the new holder.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from timer_client.cancelling import cancellable
from timer_client.firing import Firing

HEARTBEATS: Final = 3
"""Signs of life within the time that the broker waits for one."""


@dataclass(slots=True, eq=False)
class Lease:
    """One firing in our hands."""

    message: Msg
    firing: Firing
    until: float
    """Before this moment no other worker has it."""
    task: "asyncio.Task[None] | None" = field(default=None)

    @property
    def number(self) -> int:
        """Return its place in the stream."""
        return self.message.metadata.sequence.stream

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have it by now."""
        return time.monotonic() >= self.until


class Leases:
    """All firings in our hands."""

    def __init__(self, connection: Client, ack_wait_s: float) -> None:
        self._connection = connection
        self._leases: dict[int, Lease] = {}
        self.ack_wait_s = ack_wait_s

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    def add(self, lease: Lease) -> None:
        """Hold one more."""
        self._leases[lease.number] = lease

    def drop(self, lease: Lease) -> None:
        """Hold it no longer."""
        self._leases.pop(lease.number, None)

    def renew(self, message: Msg, until: float) -> bool:
        """Return whether we hold this firing already: then its newest delivery is the one to answer."""
        lease = self._leases.get(message.metadata.sequence.stream)
        if lease is not None:
            lease.message, lease.until = message, until
        return lease is not None

    async def keep(self) -> None:
        """Say once that everything in our hands is being worked on."""
        now = time.monotonic()
        kept = [lease for lease in self if not lease.is_lost]
        for lease in kept:
            await self.say(lease.message, b"+WPI")
        if kept and await self.is_told():
            for lease in kept:
                lease.until = max(lease.until, now + self.ack_wait_s)

    async def answer(self, lease: Lease, answer: bytes) -> bool:
        """Answer for a firing; return False, and stay silent, if it is no longer ours."""
        if lease.is_lost:
            return False
        await self.say(lease.message, answer)
        return True

    async def say(self, message: Msg, answer: bytes) -> None:
        """Send an answer; if it is lost, the firing is delivered again."""
        with suppress(NatsError, OSError):
            await self._connection.publish(message.reply, answer)

    async def is_told(self) -> bool:
        """Return whether the broker has what was said; twice, because nats-py may send a ping ahead of it."""
        try:
            with cancellable():
                async with asyncio.timeout(self.ack_wait_s / HEARTBEATS):
                    await self._connection.flush()
                    await self._connection.flush()
        except (NatsError, OSError, TimeoutError):
            return False
        return True
