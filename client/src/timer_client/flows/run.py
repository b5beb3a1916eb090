"""What a durable function may do: everything by a name, under which it is recorded once."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from timer_client import due as times
from timer_client.errors import Later
from timer_client.flows import statements
from timer_client.flows.journal import Journal
from timer_client.flows.model import FlowError, Hold, Memo, StepFailed, Suspension, Taken
from timer_client.flows.values import ANYTHING, returned_by

MAX_NAME: Final = 120
MAX_MESSAGE: Final = 2_000
NAME_RULE: Final = f"1 to {MAX_NAME} characters, no whitespace or control characters"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_NAME: Final = re.compile(rf"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,{MAX_NAME}}}")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Turn:
    """One way through a function, from its top to where it suspends, ends or fails."""

    def __init__(
        self,
        journal: Journal,
        taken: Taken,
        now_ms: Callable[[], int],
        is_stopping: Callable[[], bool],
        arm: Callable[[list[Memo]], Awaitable[None]],
    ) -> None:
        self.hold: Hold = taken.hold
        self.memos = {memo.name: memo for memo in taken.memos}
        self.names: set[str] = set()
        self.new: list[Memo] = []
        """Sleeps and waits that are not recorded yet."""
        self.steps = 0
        self.trouble: Exception | None = None
        """Why the function cannot go on now: fenced, the journal away, the worker about to stop."""
        self.now_ms = now_ms
        self.is_stopping = is_stopping
        self._journal = journal
        self._arm = arm
        self._wake = taken.wake

    def next_wake(self) -> int:
        """Return a wake number that was never used."""
        self._wake += 1
        return self._wake

    async def save(self, memos: list[Memo]) -> None:
        """Record memos, with the sleeps and waits that are new."""
        new, self.new = self.new, []
        await self._guarded(self._journal.commit(statements.save(self.hold, [*memos, *new])))
        if new:
            await self._guarded(self._arm(new))
        self.memos.update((memo.name, memo) for memo in (*memos, *new))

    async def perform(self, effect: Callable[[Any], Awaitable[list[Memo]]]) -> None:
        """Record memos together with an effect in the database of the journal."""
        await self._guarded(self._journal.perform(self.hold, effect))

    def leave(self, trouble: Exception) -> NoReturn:
        """Leave the function, in a way that it cannot take for an error of its own."""
        self.trouble = self.trouble or trouble
        raise Suspension from trouble

    async def _guarded(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except _Undone:
            raise
        except Exception as error:
            self.leave(error)


class _Undone(Exception):
    """The user's part of a transaction has failed, and was undone."""

    def __init__(self, why: Exception) -> None:
        self.why = why


class Run:
    """One run, as its function gets it."""

    def __init__(self, turn: Turn, prefix: str = "") -> None:
        self._turn = turn
        self._prefix = prefix
        self.caught: list[Memo] = []
        """Failures of steps that count from when the function goes on after them."""
        self._has_left = False

    @property
    def id(self) -> str:
        """Return the id that `start` was given."""
        return self._turn.hold.id

    async def step(
        self,
        name: str,
        function: Callable[[Unpack[Ts]], Awaitable[T]],
        *args: *Ts,
        key: str | int | None = None,
    ) -> T:
        """Do something at least once and record what it returned; from then on, return that.

        A failure is raised as StepFailed. If the function goes on after that, the failure is recorded, too.
        """
        name, memo = self._recall(name, key, "step")
        if memo is None:
            try:
                value = returned_by(function).write(f"the result of {name!r}", await function(*args))
            except Exception as error:
                self._fail(name, error)
            await self._record(memo := _done(name, value))
        return returned_by(function).read(memo.value)  # type: ignore[no-any-return]

    async def transaction(
        self,
        name: str,
        function: Callable[[Any, Unpack[Ts]], Awaitable[T]],
        *args: *Ts,
        key: str | int | None = None,
    ) -> T:
        """Do something in the database of the journal exactly once: it and its record are one commit.

        The function gets the connection first, and neither commits nor rolls back.
        """
        name, memo = self._recall(name, key, "step")

        async def effect(connection: Any) -> list[Memo]:
            nonlocal memo
            try:
                value = returned_by(function).write(
                    f"the result of {name!r}", await function(connection, *args)
                )
            except Exception as error:
                raise _Undone(error) from error
            memo = _done(name, value)
            return [*self.caught, memo]

        if memo is None:
            try:
                await self._turn.perform(effect)
            except _Undone as undone:
                self._fail(name, undone.why)
            self.caught.clear()
        assert memo is not None
        return returned_by(function).read(memo.value)  # type: ignore[no-any-return]

    async def sleep(self, name: str, span: timedelta, *, key: str | int | None = None) -> timedelta:
        """Sleep for a span, without being in memory meanwhile; return how late the timer was."""
        return self._until(name, key, self._turn.now_ms() + times.span_ms("span", span))

    async def sleep_until(self, name: str, moment: datetime, *, key: str | int | None = None) -> timedelta:
        """Sleep until a moment; one that has passed is over at once. Return how late the timer was."""
        return self._until(name, key, milliseconds(times.moment("moment", moment)))

    async def wait(
        self,
        name: str,
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - of the run, not of this call
        key: str | int | None = None,
    ) -> dict[str, Any] | None:
        """Wait for a signal, which may have come before, and return what it says; None after the timeout."""
        name, memo = self._recall(name, key, "wait")
        if memo is None or not memo.done:
            due_ms = None if timeout is None else self._turn.now_ms() + times.span_ms("timeout", timeout)
            self._suspend(name, "wait", memo, due_ms)
        return ANYTHING.read(memo.value)  # type: ignore[no-any-return]

    async def now(self, name: str, *, key: str | int | None = None) -> datetime:
        """Return what time it is for the service, the same whenever the function is run again."""
        name, memo = self._recall(name, key, "step")
        if memo is None:
            await self._record(memo := _done(name, str(self._turn.now_ms())))
        return EPOCH + timedelta(milliseconds=int(memo.value or 0))

    async def gather(self, **branches: "Callable[[Run], Awaitable[Any]]") -> dict[str, Any]:
        """Run branches side by side, each with a run whose names are its own; return what each returned."""
        runs = {name: Run(self._turn, f"{self._prefix}{name}/") for name in branches}
        results = await asyncio.gather(
            *(self._branch(run, branches[name]) for name, run in runs.items()), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, Suspension)):
            self._has_left = isinstance(error, Suspension)
            raise error
        return dict(zip(branches, results, strict=True))

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call a durable function with this run."""
        result = await function(self, *args)
        if self._has_left or self._turn.trouble:
            raise FlowError(
                f"run {self.id!r} was suspended and went on all the same:"
                " catch Exception, and let BaseException pass"
            )
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
            self.caught += run.caught

    def _recall(self, name: str, key: str | int | None, kind: str) -> tuple[str, Memo | None]:
        """Return the whole name and what is recorded under it."""
        if self._has_left or self._turn.trouble:
            raise Suspension  # From `finally` or `except BaseException`, on the way out.
        name = f"{self._prefix}{name}" if key is None else f"{self._prefix}{name}/{key}"
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"name must be {NAME_RULE}, with branch and key (got {name!r})")
        if name in self._turn.names:
            raise FlowError(f"{name!r} is used twice in one run: give key= in a loop")
        self._turn.names.add(name)
        memo = self._turn.memos.get(name)
        if memo is not None and memo.kind == "failed":
            raise StepFailed(name, *json.loads(memo.value or ""))
        if memo is not None and memo.kind != kind:
            raise FlowError(f"{name!r} was recorded as a {memo.kind}: give a {kind} another name")
        if memo is None and kind == "step" and self._turn.is_stopping():
            self._turn.leave(Later(timedelta(), "the worker stops"))
        return name, memo

    async def _record(self, memo: Memo) -> None:
        caught, self.caught = self.caught, []
        await self._turn.save([*caught, memo])
        self._turn.steps += 1

    def _fail(self, name: str, error: Exception) -> NoReturn:
        message = str(error)[:MAX_MESSAGE].encode(errors="replace").decode()
        failure = StepFailed(name, type(error).__name__, message)
        value = json.dumps([failure.kind, failure.message])
        self.caught.append(Memo(name, "failed", None, None, 1, value))
        raise failure from error

    def _until(self, name: str, key: str | int | None, due_ms: int) -> timedelta:
        name, memo = self._recall(name, key, "sleep")
        if memo is None or not memo.done:
            self._suspend(name, "sleep", memo, due_ms)
        return timedelta(milliseconds=int(memo.value or 0))

    def _suspend(self, name: str, kind: str, memo: Memo | None, due_ms: int | None) -> NoReturn:
        if memo is None:
            wake = None if due_ms is None else self._turn.next_wake()
            self._turn.new += [*self.caught, Memo(name, kind, wake, due_ms, 0, None)]
            self.caught.clear()
        self._has_left = True
        raise Suspension


def _done(name: str, value: str) -> Memo:
    return Memo(name, "step", None, None, 1, value)


def milliseconds(moment: datetime) -> int:
    """Return a moment in milliseconds since 1970."""
    return (moment - EPOCH) // timedelta(milliseconds=1)
