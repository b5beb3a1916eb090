"""Hints between instances: the tasks that send and hear them, without a database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.timers import at
from timer_service.adapters.postgres.connections import Address, Connections
from timer_service.adapters.postgres.hints import Hints
from timer_service.domain.errors import StoreBusy


class _Database:
    """Connections whose queries take until a test lets them end, also those that are cancelled."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked, self.may_end = asyncio.Event(), asyncio.Event()
        self._error = error

    async def fetch(self, *_: Any) -> list[Any]:
        if self._error is not None:
            self.asked.set()
            raise self._error
        try:
            self.asked.set()
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
        return []


@asynccontextmanager
async def telling(database: _Database) -> AsyncIterator[None]:
    connections = cast("Connections", database)
    hints = Hints(cast("Address", None), connections, lambda: at(0), reconnect_pause_s=0)
    async with hints.telling():
        hints.announce(at(1))
        await database.asked.wait()
        yield


async def test_a_cancellation_while_the_last_hint_is_given_up_counts() -> None:
    database = _Database()
    went_on = False

    async def run() -> None:
        nonlocal went_on
        async with telling(database):
            pass
        went_on = True

    running = asyncio.ensure_future(run())
    async with asyncio.timeout(PATIENCE_S):
        await database.asked.wait()
        for _ in range(5):  # Until the block has ended.
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        database.may_end.set()
        await asyncio.wait({running})

    assert (running.cancelled(), went_on) == (True, False)


async def test_a_database_that_takes_no_hint_ends_nothing() -> None:
    async with telling(_Database(StoreBusy("busy"))):
        pass


async def test_an_error_that_nobody_has_thought_of_is_not_lost() -> None:
    with pytest.raises(ZeroDivisionError):
        async with telling(_Database(ZeroDivisionError())):
            await asyncio.sleep(0)
