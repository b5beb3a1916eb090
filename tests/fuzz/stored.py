"""Requests that go through to a real PostgreSQL: whatever is asked, the store answers or refuses it."""

import asyncio
import traceback
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Self

from tests.fuzz import corpus
from tests.fuzz.engines import Result
from tests.fuzz.hostile import hostile
from tests.fuzz.targets import NOW, REQUESTS, _text
from tests.support.postgres import fresh_schema
from tests.support.timers import ACME, call, correlation, schedule
from timer_client import wire
from timer_service.adapters.cursor import read_cursor
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.postgres.store import PostgresTimerStore
from timer_service.domain.errors import RequestRefused
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_store import TimerQuery

KINDS = ("call", "cursor", "identifier")
"""The targets whose inputs are fed to the store as well."""


class StoredRequests:
    """A store on a real server, to be fed like any other target."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._store: PostgresTimerStore

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._runner.run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.__exit__(kind, error, where)

    async def _open(self) -> None:
        url = await self._stack.enter_async_context(fresh_schema())
        self._store = await self._stack.enter_async_context(open_postgres_store(url, lambda: NOW))

    def feed(self, data: bytes) -> None:
        """Ask for what a request asks for, then for the same bytes as if nobody had looked at them."""
        self._runner.run(self._feed(data))

    async def _feed(self, data: bytes) -> None:
        with suppress(wire.WireError):
            await self._ask(wire.read_request(REQUESTS[data[0] % len(REQUESTS)], data[1:]) if data else None)
        text = _text(data)
        for question in (
            self._store.get(ACME, call(text)),
            self._store.list_timers(TimerQuery(ACME, after=(NOW, call(text)))),
            self._store.list_timers(TimerQuery(ACME, correlation_id=correlation(text))),
        ):
            with suppress(RequestRefused):
                await question

    async def _ask(self, request: wire.Model | None) -> None:
        """Whatever passed the reader is answered: not even a refusal may come from the store."""
        match request:
            case wire.ScheduleRequest():
                await self._schedule(request)
            case wire.GetRequest():
                await self._store.get(ACME, call(request.service_call_id))
            case wire.ListRequest():
                await self._store.list_timers(_query(request))
            case _:
                pass

    async def _schedule(self, request: wire.ScheduleRequest) -> None:
        name, correlated = request.service_call_id, request.correlation_id
        command: Any = replace(
            schedule(name),
            due_at=request.due_from(NOW),
            correlation_id=None if correlated is None else correlation(correlated),
            if_absent=request.if_absent or False,
            expires_after_ms=request.expires_after_ms,
        )
        await self._store.decide([command], NOW)
        timer = await self._store.get(ACME, call(name))
        assert timer is not None
        assert timer.service_call_id == name


def _query(request: wire.ListRequest) -> TimerQuery:
    return TimerQuery(
        tenant_id=ACME,
        state=None if request.state is None else TimerState(request.state),
        correlation_id=None if request.correlation_id is None else correlation(request.correlation_id),
        due_from=request.due_from,
        due_before=request.due_before,
        after=None if request.cursor is None else read_cursor(request.cursor),
        limit=request.limit,
    )


def made_up(random: Random) -> bytes:
    """Return a request that is nearly valid, a cursor or an id."""
    return hostile(random, random.choice(KINDS))


def fuzz_stored(inputs: int, seed: int) -> Result:
    """Feed a real PostgreSQL what we make up ourselves."""
    result = Result("stored requests")
    random = Random(f"stored-{seed}")
    with StoredRequests() as target:
        for _ in range(inputs):
            data = made_up(random)
            try:
                target.feed(data)
            except Exception:
                result.broken.append(f"stored: {data[:300]!r}\n{traceback.format_exc(limit=-3)}")
                corpus.keep("call", [data])
            result.made_up += 1
    return result
