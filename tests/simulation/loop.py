"""An event loop on which time passes only when there is nothing else to do, and always in the same way."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol

MOST_STEPS_AT_ONE_INSTANT = 50_000
"""More steps than this without any time passing are a busy loop."""


class BusyLoop(Exception):
    """The program runs on and on while no time passes."""


class Lively(Protocol):
    """What the loop needs to know of a simulated process."""

    dead: bool
    frozen: bool
    parked: list[asyncio.Handle]
    tasks: list["asyncio.Task[Any]"]


PROCESS: ContextVar[Lively | None] = ContextVar("process", default=None)
"""The simulated process that a step belongs to; None for the world around it."""


class _NumberedTask(asyncio.Task[Any]):
    """A task that sets hold in the order of its number, where the stock one goes by its address."""

    numbers = itertools.count()

    def __new__(cls, *args: Any, **kwargs: Any) -> "_NumberedTask":
        task = super().__new__(cls)
        task.number = next(cls.numbers)
        return task

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs steps in the order in which asyncio would, and jumps to the next moment when all wait."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[tuple[float, asyncio.TimerHandle]]
    """With the moment in front, so that most comparisons need no call; of two at one moment none is less."""

    def __init__(self) -> None:
        super().__init__()
        self._moment = 0.0
        self._steps_at_this_instant = 0
        self.steps = 0
        """Steps of simulated processes so far."""
        self.before_step: Callable[[], None] | None = None
        self.after_step: Callable[[], None] | None = None
        self._world = copy_context()
        _NumberedTask.numbers = itertools.count()
        self.set_task_factory(_new_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._moment

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, handle))
        handle._scheduled = True  # type: ignore[attr-defined]
        return handle

    def world_at(self, moment: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call back at a moment as part of the world, in whatever context the call was made."""
        return self.call_at(max(moment, self._moment), callback, *args, context=self._world)

    def world_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Call back next, as part of the world."""
        return self.call_soon(callback, *args, context=self._world)

    def suspend(self, process: Lively, seconds: float) -> None:
        """Let a process miss so much time: its waits go on afterwards as if none had passed."""
        for number, (when, handle) in enumerate(self._scheduled):
            if _process_of(handle) is process:
                handle._when = when + seconds  # type: ignore[attr-defined]
                self._scheduled[number] = (handle.when(), handle)
        heapq.heapify(self._scheduled)

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._advance()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = _process_of(handle)
            if process is None or process.dead:
                handle._run()
            elif process.frozen:
                process.parked.append(handle)
            else:
                self._step(handle)

    def _step(self, handle: asyncio.Handle) -> None:
        self._steps_at_this_instant += 1
        if self._steps_at_this_instant > MOST_STEPS_AT_ONE_INSTANT:
            self._ready.appendleft(handle)  # A task that waits for this step must still be able to end.
            raise BusyLoop(f"{self._steps_at_this_instant} steps at one instant, the next is {handle!r}")
        self.steps += 1
        if self.before_step is not None:
            self.before_step()
        handle._run()
        if self.after_step is not None:
            self.after_step()

    def _advance(self) -> None:
        scheduled = self._scheduled
        while scheduled:
            when, handle = heapq.heappop(scheduled)
            handle._scheduled = False  # type: ignore[attr-defined]
            if handle._cancelled:
                continue
            self._ready.append(handle)
            if when > self._moment:
                self._moment = when
                self._steps_at_this_instant = 0
            break
        else:
            raise RuntimeError("nobody waits for anything any more")
        while scheduled and scheduled[0][0] <= self._moment:
            _, handle = heapq.heappop(scheduled)
            handle._scheduled = False  # type: ignore[attr-defined]
            if not handle._cancelled:
                self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it where it is: it is passed over when its time comes."""

    def _process_events(self, event_list: object) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody waits for a signal."""


def _process_of(handle: asyncio.Handle) -> Lively | None:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(PROCESS)


def _new_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: Context | None = None,
    **_: Any,
) -> "asyncio.Task[Any]":
    task = _NumberedTask(coroutine, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks.append(task)
        if len(process.tasks) > 512:
            process.tasks[:] = [running for running in process.tasks if not running.done()]
    return task
