"""A process that works on durable functions, and can be killed or stopped at any of its steps."""

import asyncio
import ctypes
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any, TypeVar

import timer_client.flows
from tests.simulation.awaits import Place, frames_of, places_in
from tests.support.flows import Connect, Shop
from timer_client.flows import Flows, Worker
from timer_client.testing import FakeTimers

PACKAGE = Path(timer_client.flows.__file__).parent

T = TypeVar("T")


class Killed(Exception):
    """The process is no more."""


class Process:
    """One process; all its tasks take their steps through it."""

    def __init__(
        self, shop: Shop, flows: Flows, stack: AsyncExitStack, before_step: Callable[..., None]
    ) -> None:
        self.shop = shop
        self.flows = flows
        self.worker = Worker(flows)
        self.is_dead = False
        self.is_over = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.is_stopped = asyncio.Event()
        self.live: set[Any] = set()
        self._stack = stack
        self._before_step = before_step

    def places(self) -> set[Place]:
        """Return where it waits now."""
        return {place for coroutine in self.live for place in places_in(coroutine, PACKAGE)}

    def holds_a_lock(self) -> bool:
        """Return whether others have to wait until it goes on: it is inside a transaction."""
        return any(
            frame.f_code.co_name == "perform" or frame.f_code.co_filename.endswith("postgres.py")
            for coroutine in self.live
            for frame in frames_of(coroutine)
        )

    def stop(self) -> None:
        """Stop, as SIGSTOP does."""
        self.may_go_on.clear()
        self.is_stopped.set()

    def go_on(self) -> None:
        """Go on, as after SIGCONT."""
        self.is_stopped.clear()
        self.may_go_on.set()

    def die(self) -> None:
        """Take no step any more."""
        self.is_dead = True
        self.is_over.set()

    async def result(self, task: "asyncio.Task[T]") -> T:
        """Return what a task of this process returns; raise Killed if the process does not live to see it."""
        await first_of(task, self.is_over)
        if not task.done():
            raise Killed
        return task.result()

    async def kill(self) -> None:
        """End, as SIGKILL does: nothing is tidied up, the database notices that the connection is gone."""
        self.die()
        for coroutine in self.live:
            # Never collected, because its `finally` would run.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))
        self.live.clear()
        await self._stack.aclose()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Do something in this process."""
        context = Context()
        context.run(PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    @types.coroutine
    def steps(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Take one step of a coroutine after another, unless the process is killed or stopped."""
        value, error = None, None
        self.live.add(work)
        while True:
            self._before_step(self, after=False)
            if not self.may_go_on.is_set():
                yield from self.may_go_on.wait().__await__()
            if self.is_dead:
                raise Killed
            try:
                waits_for = work.send(value) if error is None else work.throw(error)
            except BaseException as end:
                self.live.discard(work)
                if isinstance(end, StopIteration):
                    return end.value  # type: ignore[no-any-return]
                raise
            self._before_step(self, after=True)
            if self.is_dead:
                raise Killed
            try:
                value, error = (yield waits_for), None
            except BaseException as thrown:
                value, error = None, thrown


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


def new_task(
    loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None, **_: Any
) -> "asyncio.Task[Any]":
    """Make a task; one that belongs to a process takes its steps through it."""
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is None:
        return asyncio.Task(work, loop=loop, context=context)
    if "memory_broker" in work.cr_code.co_filename:
        return asyncio.Task(work, loop=loop, context=Context())  # The broker is not of the process.
    return asyncio.Task(process.steps(work), loop=loop, context=context)


async def first_of(task: "asyncio.Task[Any]", *events: asyncio.Event) -> None:
    """Wait until a task is done or an event has happened."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait({task, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


async def open_process(
    connect: Connect,
    timers: FakeTimers,
    done: list[str],
    define: Callable[[Shop, Flows], None],
    before_step: Callable[..., None],
) -> Process:
    """Start a process with a connection of its own."""
    stack = AsyncExitStack()
    shop = Shop(await stack.enter_async_context(connect()), timers, done)
    flows = shop.flows()
    define(shop, flows)
    return Process(shop, flows, stack, before_step)
