"""The clients that must keep one contract: a new one is one more entry here."""

import asyncio
import atexit
import functools
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import nats

from tests.support.broker import NatsServer
from tests.support.process import TimerServiceProcess
from timer_client import Timers
from timer_client.testing import FakeTimers

PREFIX = "clients"

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Desk:
    """A tenant that nobody else is, and its client."""

    timers: Timers
    again: Callable[[], AbstractAsyncContextManager[Timers]]
    """Open another client of the same tenant, as a process does that was started again."""


@asynccontextmanager
async def open_real(broker: NatsServer) -> AsyncIterator[Desk]:
    """Talk to the real service; one process of it serves all tests of a run."""
    start_service(broker)
    tenant = f"tenant-{next(_numbers)}"

    @asynccontextmanager
    async def again() -> AsyncIterator[Timers]:
        async with await nats.connect(broker.url) as connection:
            yield Timers(connection, tenant=tenant, prefix=PREFIX)

    async with AsyncExitStack() as stack:
        yield Desk(await stack.enter_async_context(again()), again)


@functools.cache
def start_service(broker: NatsServer) -> TimerServiceProcess:
    folder = broker.folder / "clients"
    service = TimerServiceProcess(
        folder, broker_url=broker.url, subject_prefix=PREFIX, db_path=folder / "timers.db"
    )
    atexit.register(service.start_ready().close)
    return service


@asynccontextmanager
async def open_fake() -> AsyncIterator[Desk]:
    """Talk to nobody: timers in memory, whose time passes a little with every turn of the event loop."""
    fake = FakeTimers(tenant=f"tenant-{next(_numbers)}")

    async def let_time_pass() -> None:
        while True:
            await fake.advance(milliseconds=1)
            await asyncio.sleep(0.001)

    @asynccontextmanager
    async def again() -> AsyncIterator[Timers]:
        yield fake.of(fake.tenant)

    passing = asyncio.ensure_future(let_time_pass())
    try:
        yield Desk(fake, again)
    finally:
        passing.cancel()
        await asyncio.wait({passing})


OpenDesk = Callable[[Callable[[], NatsServer]], AbstractAsyncContextManager[Desk]]
CLIENTS: dict[str, OpenDesk] = {"real": lambda broker: open_real(broker()), "fake": lambda _: open_fake()}
