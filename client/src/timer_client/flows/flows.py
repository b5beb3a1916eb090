"""Durable functions of one name: define them, start runs, look at them, work on them."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar

from timer_client.errors import TimerError
from timer_client.flows import statements
from timer_client.flows.journal import Journal
from timer_client.flows.model import FlowError, RunState, RunView, moment
from timer_client.flows.reconcile import reconcile_often
from timer_client.flows.values import ANYTHING, Value, returned_by, taken_by
from timer_client.flows.worker import Worker
from timer_client.timers import Timers

PAGE: Final = 100
GRACE: Final = timedelta(seconds=30)
QUESTIONS: Final = 3
"""How often a worker asks what time it is before it begins: the answer that took least is the most exact."""
RETRY_DELAYS: Final = tuple(timedelta(seconds=seconds) for seconds in (1, 5, 30, 300, 1800, 7200))
"""After which a run is tried again that has failed; beyond them it is `Failed` until somebody retries it."""

_log = logging.getLogger("timer_client.flows")

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])
Observer = Callable[[str, str, Mapping[str, object]], None]
"""Gets each event of docs/flows.md, the id of its run and its fields, for logs and metrics of your own."""


class Flow(NamedTuple):
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
        if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name) is None:
            raise ValueError(f"name must be 1 to 40 of A-Z a-z 0-9 _ - (got {name!r})")
        self.timers = timers
        self.journal = journal
        self.name = name
        self.scope = f"{timers.tenant}/{name}"
        self.flows: dict[tuple[str, int], Flow] = {}
        self.counts: Counter[str] = Counter()
        """How often each event of docs/flows.md has happened in this process."""
        self._observer = observer

    def flow(
        self, name: str, *, version: int = 1, retry_delays: Sequence[timedelta] = RETRY_DELAYS
    ) -> Callable[[Function], Function]:
        """Define a version of a durable function: `async def order(run: Run, order: Order) -> str`."""
        if (name, version) in self.flows:
            raise ValueError(f"flow {name!r} version {version} is already defined")

        def define(function: Function) -> Function:
            takes, result = taken_by(function, 1), returned_by(function)
            self.flows[name, version] = Flow(function, takes, result, retry_delays)
            return function

        return define

    async def start(self, flow: str, *, id: str, input: Any = None, connection: Any = None) -> bool:
        """Start a run of the newest version; return False if there is one of this id, which stays as it is.

        With a connection the run is part of the caller's transaction there, and begins once that commits.
        """
        if re.fullmatch(r"[^\s/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,80}", id) is None:
            raise ValueError(f"id must be 1 to 80 characters, no whitespace, control or / (got {id!r})")
        version = max((version for name, version in self.flows if name == flow), default=0)
        if (flow, version) not in self.flows:
            raise FlowError(f"flow {flow!r} is not defined here: {sorted(self.flows)} are")
        value = self.flows[flow, version].takes.write("input", input)
        work = statements.start(self.scope, id, flow, version, value)
        is_new, wakes = await self.journal.commit(work, connection)
        await self.arm(id, wakes)
        return is_new

    async def signal(self, id: str, name: str, /, **payload: Any) -> bool:
        """Tell a run what it waits for, or will wait for; return False if it was told before or has ended."""
        value = ANYTHING.write(f"signal {name!r}", payload)
        counts, wakes, timeout = await self.journal.commit(statements.signal(self.scope, id, name, value))
        await self.arm(id, wakes)
        await self.disarm(id, timeout)
        return counts

    async def cancel(self, id: str) -> bool:
        """End a run where it is; return False if it has ended before."""
        was_in_time, pending = await self.journal.commit(statements.cancel(self.scope, id))
        await self.disarm(id, pending)
        return was_in_time

    async def retry(self, id: str) -> None:
        """Let a failed run continue where it was."""
        await self.arm(id, await self.journal.commit(statements.retry(self.scope, id)))

    async def get(self, id: str) -> RunView:
        """Return a run, or raise RunNotFound."""
        return self._view(await self.journal.commit(statements.get(self.scope, id)))

    async def list(
        self, *, flow: str | None = None, version: int | None = None, state: RunState | None = None
    ) -> AsyncIterator[RunView]:
        """Yield runs by id; each argument narrows the list."""
        after, narrowed = "", (state or "", flow or "", version or 0)
        while rows := await self.journal.commit(statements.page(self.scope, after, *narrowed, PAGE)):
            for row in rows:
                yield self._view(row)
            after = rows[-1][0]

    @asynccontextmanager
    async def worker(
        self, *, concurrency: int = 20, ack_wait: timedelta | None = None, grace: timedelta = GRACE
    ) -> AsyncIterator[Worker]:
        """Go on with runs while inside the block; at its end, wait for steps under way, not for sleeps."""
        worker = Worker(self)
        with suppress(TimerError):  # Without it the first events say what time it is.
            for _ in range(QUESTIONS):
                await worker.ask_time()
        async with self.timers.consume(
            f"flow-{self.name}",
            worker.handle,
            concurrency=concurrency,
            prefetch=concurrency,
            ack_wait=ack_wait,
            grace=grace,
        ):
            reconciling = asyncio.ensure_future(reconcile_often(worker))
            try:
                yield worker
            finally:
                worker.is_stopping = True
                reconciling.cancel()
                await asyncio.wait({reconciling})

    async def arm(self, run_id: str, memos: Iterable[statements.Memo]) -> None:
        """Schedule the timers of what is not done; those that are there already stay as they are."""
        for memo in memos:
            if memo.wake is not None and not memo.done:
                due = moment(memo.due_ms) if memo.due_ms else timedelta()
                await self.timers.schedule(self.timer_id(run_id, memo), due, if_absent=True)

    async def disarm(self, run_id: str, memos: Iterable[statements.Memo]) -> None:
        """Cancel timers of a run that nobody needs any more."""
        for memo in memos:
            if memo.wake is not None:
                await self.timers.cancel(self.timer_id(run_id, memo))

    def timer_id(self, run_id: str, memo: statements.Memo) -> str:
        """Return the id of a timer; the name of a wake-up that belongs to no step begins with its number."""
        return f"flow/{self.name}/{run_id}/{memo.wake}/{memo.name.split()[-1]}"

    def address_of(self, timer_id: str) -> tuple[str, int] | None:
        """Return the run and the wake number that a timer is for, or None if it is not one of ours."""
        found = re.fullmatch(rf"flow/{self.name}/([^/]+)/(\d+)/.*", timer_id)
        return None if found is None else (found[1], int(found[2]))

    def tell(self, event: str, run_id: str, **fields: object) -> None:
        """Count and log an event, and pass it on to the observer."""
        self.counts[event] += 1
        level = logging.DEBUG if event in ("flow.woken", "flow.completed") else logging.WARNING
        _log.log(level, "%s %s/%s %s", event, self.scope, run_id, fields)
        if self._observer is not None:
            self._observer(event, run_id, fields)

    def _view(self, row: Sequence[Any]) -> RunView:
        run_id, name, version, state, attempts, due_ms, result, error = row
        flow = self.flows.get((name, version))
        due_at = moment(due_ms) if due_ms and state == RunState.SLEEPING else None
        value = None if result is None else (flow.result if flow else ANYTHING).read(result)
        return RunView(run_id, name, version, RunState(state), attempts, due_at, value, error)
