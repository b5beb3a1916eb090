"""Durable functions of one name: define them, start runs, look at them, work on them."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from timer_client.errors import TimerError
from timer_client.flows import statements
from timer_client.flows.journal import Journal
from timer_client.flows.model import FlowError, RunState, RunView, Wake
from timer_client.flows.reconcile import reconcile_often, service_time_ms
from timer_client.flows.run import EPOCH
from timer_client.flows.values import ANYTHING, Value, returned_by, taken_by
from timer_client.flows.worker import Worker
from timer_client.timers import Timers

NAME_RULE: Final = "1 to 40 of A-Z a-z 0-9 _ -"
ID_RULE: Final = "1 to 80 characters, no whitespace, control characters or /"
PAGE: Final = 100
RETRY_DELAYS: Final = tuple(timedelta(seconds=seconds) for seconds in (1, 5, 30, 300, 1800, 7200))
"""After which a run is tried again that has failed; beyond them it is `Failed` until somebody retries it."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ID: Final = re.compile(r"[^\s/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,80}")
_log = logging.getLogger("timer_client.flows")

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])
Observer = Callable[[str, str, Mapping[str, object]], None]
"""Gets each event of docs/flows.md, the id of its run and its fields, for logs and metrics of your own."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One version of a durable function."""

    function: Callable[..., Awaitable[Any]]
    takes: Value
    result: Value
    retry_delays: Sequence[timedelta]


class Flows:
    """Durable functions whose runs are recorded in a journal and woken by timers."""

    def __init__(
        self, timers: Timers, journal: Journal, *, name: str, observer: Observer | None = None
    ) -> None:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"name must be {NAME_RULE} (got {name!r})")
        self.timers = timers
        self.journal = journal
        self.name = name
        self.scope = f"{timers.tenant}/{name}"
        self.flows: dict[tuple[str, int], Flow] = {}
        self._observer = observer

    @property
    def known(self) -> statements.Names:
        """Return the flows and versions that are defined here."""
        return frozenset(self.flows)

    def flow(
        self, name: str, *, version: int = 1, retry_delays: Sequence[timedelta] = RETRY_DELAYS
    ) -> Callable[[Function], Function]:
        """Define a version of a durable function: `async def order(run: Run, order: Order) -> str`."""
        if (name, version) in self.flows:
            raise ValueError(f"flow {name!r} version {version} is defined already")

        def define(function: Function) -> Function:
            self.flows[name, version] = Flow(
                function, taken_by(function, 1), returned_by(function), retry_delays
            )
            return function

        return define

    async def start(
        self,
        flow: str,
        *,
        id: str,  # noqa: A002
        input: Any = None,  # noqa: A002
        version: int | None = None,
        connection: Any = None,
    ) -> bool:
        """Start a run of the newest version; return False if there is one of this id, which stays as it is.

        With a connection the run is part of the caller's transaction there, and begins once that commits.
        """
        if _ID.fullmatch(id) is None:
            raise ValueError(f"id must be {ID_RULE} (got {id!r})")
        version = version or max((v for name, v in self.flows if name == flow), default=0)
        if (flow, version) not in self.flows:
            raise FlowError(f"flow {flow!r} is not defined here: {sorted(self.flows)} are")
        value = self.flows[flow, version].takes.write("input", input)
        is_new, wake = await self.journal.commit(
            statements.start(self.scope, id, flow, version, value), connection
        )
        await self.arm(id, [] if wake is None else [wake])
        return is_new

    async def signal(self, id: str, name: str, /, **payload: Any) -> bool:  # noqa: A002
        """Tell a run what it waits for, or will wait for; return False if it was told before or has ended."""
        value = ANYTHING.write(f"signal {name!r}", payload)
        counts, wake, timeout = await self.journal.commit(statements.signal(self.scope, id, name, value))
        await self.arm(id, [] if wake is None else [wake])
        await self.disarm(id, [] if timeout is None else [timeout])
        return counts

    async def cancel(self, id: str) -> bool:  # noqa: A002
        """End a run where it is; return False if it has ended before."""
        was_in_time, pending = await self.journal.commit(statements.cancel(self.scope, id))
        await self.disarm(id, pending)
        return was_in_time

    async def retry(self, id: str) -> None:  # noqa: A002
        """Have a run that has failed go on where it was."""
        wake = await self.journal.commit(statements.retry(self.scope, id))
        await self.arm(id, [] if wake is None else [wake])

    async def get(self, id: str) -> RunView:  # noqa: A002
        """Return a run, or raise RunNotFound."""
        return self._view(await self.journal.commit(statements.get(self.scope, id)))

    async def list(
        self, *, flow: str | None = None, version: int | None = None, state: RunState | None = None
    ) -> AsyncIterator[RunView]:
        """Yield runs by id; each argument narrows the list."""
        after, size = "", PAGE
        while size == PAGE:
            rows = await self.journal.commit(
                statements.page(self.scope, after, state or "", flow or "", version or 0, PAGE)
            )
            for row in rows:
                yield self._view(row)
            after, size = rows[-1][0] if rows else "", len(rows)

    @asynccontextmanager
    async def worker(
        self,
        *,
        concurrency: int = 20,
        ack_wait: timedelta | None = None,
        grace: timedelta = timedelta(seconds=30),
    ) -> AsyncIterator[Worker]:
        """Go on with runs while inside the block; at its end, wait for steps under way, not for sleeps."""
        worker = Worker(self)
        with suppress(TimerError):  # Without it the first events say what time it is.
            asked_at = self.timers.stopwatch()
            worker.learn(await service_time_ms(self), asked_at=asked_at)
        async with self.timers.consume(
            f"flow-{self.name}",
            worker.handle,
            concurrency=concurrency,
            prefetch=concurrency,
            ack_wait=ack_wait,
            grace=grace,
        ):
            reconciling = asyncio.ensure_future(reconcile_often(self, worker))
            try:
                yield worker
            finally:
                worker.is_stopping = True
                reconciling.cancel()
                await asyncio.wait({reconciling})

    async def arm(self, run_id: str, wakes: Sequence[Wake]) -> None:
        """Schedule timers of a run; those that are there already stay as they are."""
        for wake in wakes:
            due = EPOCH + timedelta(milliseconds=wake.due_ms) if wake.due_ms else timedelta()
            await self.timers.schedule(self.timer_id(run_id, wake), due, if_absent=True)

    async def disarm(self, run_id: str, wakes: Sequence[Wake]) -> None:
        """Cancel timers of a run that nobody needs any more."""
        for wake in wakes:
            await self.timers.cancel(self.timer_id(run_id, wake))

    def timer_id(self, run_id: str, wake: Wake) -> str:
        """Return the id of a timer."""
        return f"flow/{self.name}/{run_id}/{wake.number}/{wake.name}"

    def address_of(self, timer_id: str) -> tuple[str, int] | None:
        """Return the run and the wake number that a timer is for, or None if it is not one of ours."""
        kind, name, run_id, number, *_ = [*timer_id.split("/", 4), "", "", "", ""]
        if kind != "flow" or name != self.name or not number.isdigit():
            return None
        return run_id, int(number)

    def tell(self, event: str, run_id: str, **fields: object) -> None:
        """Log an event, and pass it on to the observer."""
        level = logging.WARNING if event in _WARNINGS else logging.DEBUG
        _log.log(level, "%s %s/%s %s", event, self.scope, run_id, fields)
        if self._observer is not None:
            self._observer(event, run_id, fields)

    def _view(self, row: Sequence[Any]) -> RunView:
        run_id, name, version, state, attempts, due_ms, result, error = row
        flow = self.flows.get((name, version))
        due_at = EPOCH + timedelta(milliseconds=due_ms) if due_ms and state == RunState.SLEEPING else None
        value = None if result is None else (flow.result if flow else ANYTHING).read(result)
        return RunView(run_id, name, version, RunState(state), attempts, due_at, value, error)


_WARNINGS: Final = {"flow.failed", "flow.fenced", "flow.retried", "flow.unknown", "flow.found_overdue"}
