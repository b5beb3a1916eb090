"""What a durable function may do: everything by a name, under which it is recorded once."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from timer_client import due as times
from timer_client.cancelling import uncancelled
from timer_client.errors import Later
from timer_client.flows.model import FlowError, StepFailed, Suspension, milliseconds, moment
from timer_client.flows.statements import Memo, Taken, save
from timer_client.flows.values import ANYTHING, returned_by

if TYPE_CHECKING:
    from timer_client.flows.worker import Worker

MAX_MESSAGE: Final = 2_000

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Key = str | int | None


class Turn:
    """One way through a function, from its top to where it suspends, ends or fails."""

    def __init__(self, worker: "Worker", taken: Taken) -> None:
        self.worker = worker
        self.hold = taken.hold
        self.memos = {memo.name: memo for memo in taken.memos}
        self.names: set[str] = set()
        self.new: list[Memo] = []
        """Sleeps and waits that are not recorded yet."""
        self.trouble: Exception | None = None
        """Why the function cannot continue: fenced, the journal is away, or the worker is about to stop."""
        self.numbers = count(1 + max(memo.wake for memo in taken.memos if memo.wake is not None))
        """Wake numbers that were never used."""

    async def save(self, memos: list[Memo]) -> None:
        """Record memos, with the sleeps and waits that are new."""
        flows, new, self.new = self.worker.flows, self.new, []
        _, recorded = await self.guarded(flows.journal.commit(save(self.hold, [*memos, *new])))
        await self.guarded(flows.arm(self.hold.id, recorded))
        self.memos.update((memo.name, memo) for memo in (*memos, *new))

    def leave(self, trouble: Exception) -> NoReturn:
        """Leave the function, in a way that it cannot take for an error of its own."""
        self.trouble = self.trouble or trouble
        raise Suspension from trouble

    async def guarded(self, work: Awaitable[T]) -> T:
        """Wait for something of ours, whose failure is none of the function's."""
        try:
            return await work
        except StepFailed:
            raise
        except Exception as error:
            self.leave(error)


class Run:
    """One run, as its function gets it."""

    def __init__(self, turn: Turn, prefix: str = "", caught: Iterable[Memo] = ()) -> None:
        self._turn = turn
        self._prefix = prefix
        self.last = prefix
        """The name of what was done last."""
        self.caught = list(caught)
        """Failures of steps that count from when the function goes on after them."""
        self._has_left = False

    @property
    def id(self) -> str:
        """Return the id that `start` was given."""
        return self._turn.hold.id

    async def step(
        self, name: str, function: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, key: Key = None
    ) -> T:
        """Do something at least once and record what it returned; from then on, return that.

        A failure is raised as StepFailed. If the function goes on after that, the failure is recorded too.
        """
        name, memo = self._recall(name, key, "step")
        if memo is None:
            memo = await self._attempt(name, function, *args)
            await self._record(memo)
        return returned_by(function).read(memo.value)  # type: ignore[no-any-return]

    async def transaction(
        self, name: str, function: Callable[[Any, Unpack[Ts]], Awaitable[T]], *args: *Ts, key: Key = None
    ) -> T:
        """Do something in the database of the journal exactly once: it and its record are one commit.

        The function gets the connection first, and neither commits nor rolls back.
        """
        name, memo = self._recall(name, key, "step")

        async def effect(connection: Any) -> list[Memo]:
            nonlocal memo
            memo = await self._attempt(name, function, connection, *args)
            return [*self.caught, memo]

        if memo is None:
            await self._turn.guarded(self._turn.worker.flows.journal.perform(self._turn.hold, effect))
            self.caught.clear()
        assert memo is not None
        return returned_by(function).read(memo.value)  # type: ignore[no-any-return]

    async def sleep(self, name: str, span: timedelta, *, key: Key = None) -> timedelta:
        """Sleep for a span, without staying in memory; return how late the timer was."""
        return self._until(name, key, self._turn.worker.now_ms() + times.wait_ms("span", span))

    async def sleep_until(self, name: str, moment: datetime, *, key: Key = None) -> timedelta:
        """Sleep until a moment; one that has passed is over at once. Return how late the timer was."""
        return self._until(name, key, milliseconds(times.moment("moment", moment)))

    async def wait(
        self, name: str, *, timeout: timedelta | None = None, key: Key = None
    ) -> dict[str, Any] | None:
        """Wait for a signal, which may have come before, and return what it says; None after the timeout."""
        span_ms = None if timeout is None else times.wait_ms("timeout", timeout)
        due_ms = None if span_ms is None else self._turn.worker.now_ms() + span_ms
        return ANYTHING.read(self._passed(name, key, "wait", due_ms).value)  # type: ignore[no-any-return]

    async def now(self) -> datetime:
        """Return what time it is for the service, the same whenever the function is run again.

        It stands until the next step, sleep or wait: what it is recorded under is the name of the last one.
        """
        name = f"{self.last} now"
        memo = self._turn.memos.get(name)
        if memo is None:
            self._check()
            await self._record(memo := _done(name, str(self._turn.worker.now_ms())))
        return moment(int(memo.value or 0))

    async def gather(self, **branches: "Callable[[Run], Awaitable[Any]]") -> dict[str, Any]:
        """Run branches side by side, each with a run whose names are its own; return what each returned."""
        # What failed before counts as soon as one of the branches records something.
        runs = {name: Run(self._turn, f"{self._prefix}{name}/", self.caught) for name in branches}
        work = (self._branch(run, branches[name]) for name, run in runs.items())
        results = await asyncio.gather(*work, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, Suspension)):
            self._has_left = isinstance(error, Suspension)
            # Branches that have ended went on after what failed in them.
            self._turn.new += self.caught if self._has_left else []
            raise error
        self.last = " ".join(run.last for run in runs.values())
        return dict(zip(branches, results, strict=True))

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call a durable function with this run."""
        result = await function(self, *args)
        if self._has_left or self._turn.trouble:
            raise FlowError(f"run {self.id!r} was suspended and went on: catch Exception, not BaseException")
        return result

    async def _branch(self, run: "Run", function: "Callable[[Run], Awaitable[T]]") -> T:
        try:
            return await run.call(function)
        except Suspension:
            if self._turn.trouble is None:
                # Its sleep begins now, however long the other branches take.
                await self._turn.save([])
            raise
        finally:
            self.caught += [memo for memo in run.caught if memo not in self.caught]

    def _recall(self, name: str, key: Key, kind: str) -> tuple[str, Memo | None]:
        """Return the whole name and what is recorded under it."""
        self._check()
        name = self.last = f"{self._prefix}{name}" if key is None else f"{self._prefix}{name}/{key}"
        if re.fullmatch(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,120}", name) is None:
            raise ValueError(f"name must be 1 to 120 characters, none of them whitespace (got {name!r})")
        if name in self._turn.names:
            raise FlowError(f"{name!r} is used twice in one run: give key= in a loop")
        self._turn.names.add(name)
        memo = self._turn.memos.get(name)
        if memo is not None and memo.kind == "failed":
            raise StepFailed(name, *json.loads(memo.value or ""))
        if memo is not None and memo.kind != kind:
            raise FlowError(f"{name!r} was recorded as a {memo.kind}: give the {kind} another name")
        if memo is None and kind == "step" and self._turn.worker.is_stopping:
            self._turn.leave(Later(timedelta(), "the worker stops"))
        return name, memo

    def _check(self) -> None:
        if self._has_left or self._turn.trouble:
            raise Suspension  # From `finally` or `except BaseException`, on the way out.

    async def _attempt(self, name: str, function: Callable[..., Awaitable[Any]], *args: Any) -> Memo:
        try:
            result = await uncancelled(function(*args))
            return _done(name, returned_by(function).write(f"the result of {name!r}", result))
        except Exception as error:
            why = (type(error).__name__, told(str(error)))
            self.caught.append(Memo(name, "failed", None, None, 1, json.dumps(why)))
            raise StepFailed(name, *why) from error

    async def _record(self, memo: Memo) -> None:
        caught, self.caught = self.caught, []
        await self._turn.save([*caught, memo])
        self._turn.worker.flows.counts["flow.step"] += 1

    def _until(self, name: str, key: Key, due_ms: int) -> timedelta:
        return timedelta(milliseconds=int(self._passed(name, key, "sleep", due_ms).value or 0))

    def _passed(self, name: str, key: Key, kind: str, due_ms: int | None) -> Memo:
        """Return what ended a sleep or a wait, or leave the function until something does."""
        name, memo = self._recall(name, key, kind)
        if memo is not None and memo.done:
            return memo
        if memo is None:
            wake = None if due_ms is None else next(self._turn.numbers)
            self._turn.new += [*self.caught, Memo(name, kind, wake, due_ms, 0, None)]
            self.caught.clear()
        self._has_left = True
        raise Suspension


def told(text: str) -> str:
    """Return as much of what an exception says as is recorded."""
    return text[:MAX_MESSAGE].encode(errors="replace").decode()


def _done(name: str, value: str) -> Memo:
    return Memo(name, "step", None, None, 1, value)
