"""The right of way: what is urgent goes first, and what can wait takes its steps in turns."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

GIVE_WAY_S: Final = 0.005
"""For so long after something urgent began, what can wait lets it end; beside what never ends it goes on."""
STEP_S: Final = 0.0005
"""So long before something becomes urgent nothing more begins: what can wait takes steps that are as long."""
QUIET_S: Final = 0.1
"""After this long without anything urgent, what can wait goes on as it comes."""

T = TypeVar("T")


class RightOfWay:
    """What is urgent goes first; what can wait goes on in its order, one step in each round of the loop.

    One, because all who have waited would otherwise go on in the same round, and what becomes urgent then
    would wait for all of them. Where nothing has been urgent for a while, nobody waits for a turn.
    """

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._urgent = 0
        self._urgent_from_s = self._urgent_until_s = float("-inf")
        self._expected_s = float("inf")
        self._waiting = deque[tuple[float, asyncio.Future[None]]]()
        """With the patience that each has."""
        self._ended = asyncio.Event()
        self._ended.set()
        self._next: asyncio.Handle | None = None
        """Who waits goes on then; also there after somebody has gone on in this round."""

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Go first while the block runs."""
        loop = asyncio.get_running_loop()
        if not self._urgent:
            self._urgent_from_s = loop.time()
        self._urgent += 1
        self._ended.clear()
        try:
            yield
        finally:
            self._urgent -= 1
            self._urgent_until_s = loop.time()
            if not self._urgent:
                self._ended.set()
                # At once: by the time that the loop comes round, something may be urgent again.
                self._go_on()

    @contextmanager
    def expected(self, after_s: float) -> Iterator[None]:
        """Let nobody in line go on when something is about to become urgent, until the block ends."""
        self._expected_s = asyncio.get_running_loop().time() + after_s
        try:
            yield
        finally:
            self._expected_s = float("inf")

    @property
    def expected_in_s(self) -> float:
        """When something becomes urgent, as far as is known; infinite if nothing is."""
        return max(0.0, self._expected_s - asyncio.get_running_loop().time())

    @property
    def is_urgent(self) -> bool:
        """Whether somebody goes first."""
        return self._urgent > 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has been urgent for a while."""
        return not self._urgent and asyncio.get_running_loop().time() - self._urgent_until_s > self._quiet_s

    async def ended(self, patience_s: float) -> None:
        """Let what is urgent end; who waits here goes on with the others that do, so they must be few."""
        until_s = self._urgent_from_s + patience_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._ended.wait()

    def is_free(self) -> bool:
        """Return whether one of many may take a step at once, without holding up anything that is urgent."""
        if self._urgent or self._waiting:
            return False
        loop = asyncio.get_running_loop()
        if loop.time() > self._expected_s - STEP_S:
            return False
        if self.is_quiet:
            return True
        if self._next is not None:
            return False
        self._next = loop.call_soon(self._go_on)
        return True

    async def in_line(self, patience_s: float) -> None:
        """Wait behind those who wait, and for what is urgent."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append((patience_s, turn))
        if self._next is None:
            self._next = loop.call_soon(self._go_on)
        await turn

    def _go_on(self) -> None:
        """Let the first in line go on, unless something is urgent, or about to be, and not for too long."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()  # Cancelled meanwhile.
        if not self._waiting:
            return
        patience_s, turn = self._waiting[0]
        loop = turn.get_loop()
        now_s, from_s = loop.time(), self._urgent_from_s if self._urgent else self._expected_s
        if from_s - STEP_S < now_s < from_s + patience_s:
            self._next = loop.call_at(from_s + patience_s, self._go_on)
            return
        self._waiting.popleft()
        turn.set_result(None)
        self._next = loop.call_soon(self._go_on)


class TasksInTurns:
    """Begins tasks of a group whose every step lets what is urgent end."""

    def __init__(self, tasks: asyncio.TaskGroup, way: RightOfWay, patience_s: float) -> None:
        self._tasks = tasks
        self._way = way
        self._patience_s = patience_s

    def create_task(
        self, work: Coroutine[Any, Any, T], *, name: str, one_of_many: bool = False
    ) -> "asyncio.Task[T]":
        """Begin a task; the steps of many wait in line, too."""
        steps = in_turns(work, self._way, self._patience_s, one_of_many=one_of_many)
        task = self._tasks.create_task(steps, name=name)
        task.add_done_callback(lambda _: work.close())  # It may have ended before its first step.
        return task


async def in_turns(
    work: Coroutine[Any, Any, T], way: RightOfWay, patience_s: float, *, one_of_many: bool = False
) -> T:
    """Return what the work returns; each step lets what is urgent end; those of many wait in line, too."""

    def let_end() -> Coroutine[Any, Any, object] | None:
        return way.ended(patience_s) if way.is_urgent else None

    def wait_in_line() -> Coroutine[Any, Any, object] | None:
        return None if way.is_free() else way.in_line(patience_s)

    return await InTurns(work, wait_in_line if one_of_many else let_end)


Wait = Callable[[], Coroutine[Any, Any, object] | None]
"""What a step waits for; None if it may be taken at once."""


class InTurns(Awaitable[T]):
    """Work each of whose steps, from one wait to the next, waits for its turn."""

    def __init__(self, work: Coroutine[Any, Any, T], wait: Wait) -> None:
        self.work = work
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        while True:
            try:
                if error is None and (turn := self._wait()) is not None:
                    yield from turn.__await__()
            except BaseException as interruption:  # It is the work's own.
                error = interruption
            try:
                awaited = self.work.send(None) if error is None else self.work.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            error = None
            try:
                yield awaited
            except BaseException as interruption:
                error = interruption
