"""A cancellation that comes at the same moment as the broker's answer counts."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from nats.aio.client import Client
from nats.js.api import PubAck

from timer_client import Timers
from timer_client.cancelling import cancellable


class Absorbing:
    """A broker whose answer comes with the cancellation, which nats-py then forgets on Python 3.11."""

    last_error = None

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    def jetstream(self) -> "Absorbing":
        return self

    async def publish(self, *_: Any, **__: Any) -> PubAck:
        self.is_asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return PubAck("TIMER_COMMANDS", 1)
        raise AssertionError


async def test_a_command_that_is_confirmed_as_it_is_cancelled_is_cancelled() -> None:
    broker = Absorbing()
    timers = Timers(cast("Client", broker), tenant="acme")
    scheduling = asyncio.ensure_future(timers.schedule("order-1", timedelta(days=3)))
    await broker.is_asked.wait()

    scheduling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await scheduling


async def test_what_cleans_up_after_a_cancellation_is_not_cancelled_again() -> None:
    is_clean = False

    async def work() -> None:
        nonlocal is_clean
        try:
            await asyncio.Event().wait()
        finally:
            with cancellable():
                await asyncio.sleep(0)
            is_clean = True

    working = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait({working})

    assert is_clean
