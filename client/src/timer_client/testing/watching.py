"""Watch a flow as it runs: what it asks its run for, and what it does by itself, which it must not."""

import functools
import gc
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any, Final, cast

from pydantic import BaseModel

import timer_client

_OURS: Final = str(Path(timer_client.__file__).parent)
_INNOCENT: Final = ("asyncio", "importlib", "logging", "warnings")
"""Packages that ask for the time and the like without a consequence for the flow."""
_FROM_OUTSIDE: Final = {
    **dict.fromkeys(("datetime.now", "datetime.utcnow", "datetime.today", "date.today"), "the clock"),
    **dict.fromkeys(("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"), "the clock"),
    **dict.fromkeys(("gmtime", "localtime", "ctime", "strftime"), "the clock"),
    **dict.fromkeys(("Random.random", "Random.getrandbits", "urandom"), "chance"),
    **dict.fromkeys(("open", "getpid", "gethostname"), "the machine"),
}
"""What builtin functions ask for that may be another when the flow is run again."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")

Flow = Callable[..., Coroutine[Any, Any, Any]]


class FlowMistake(AssertionError):
    """A flow does what it would not survive: each line of the text says what, and where."""


class Watch:
    """What a flow does, over all the times that it is run from the top."""

    def __init__(self, effects: list[Any]) -> None:
        self._mistakes: dict[str, None] = {}
        self._effects = effects
        self._is_blind = False
        self._allowed = 0
        self._steps = 0
        self._asked: dict[str, str] = {}

    def watched(self, flow: Flow) -> Flow:
        """Return a flow that does the same and is watched."""

        @functools.wraps(flow)
        async def run_watched(run: Any, *inputs: Any) -> Any:
            mirror = _WatchedRun(run, self)
            result = await self.drive(flow(mirror, *inputs))
            for what in self._asked:
                if what not in mirror.asked_for:
                    self.found(f"{what} was asked for, and when the flow was run again it was not")
            return result

        return run_watched

    def drive(self, flow: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        """Return what runs the flow, or a branch of it, and is watched."""
        assert isinstance(flow, CoroutineType)
        return _Driven(flow, functools.partial(self._outside_steps, flow))

    def found(self, mistake: str) -> None:
        """Keep a mistake."""
        if not self._is_blind:
            self._mistakes[mistake] = None

    def check(self) -> None:
        """Raise FlowMistake if there is any."""
        if self._mistakes:
            raise FlowMistake("\n".join(self._mistakes))

    @contextmanager
    def blind(self) -> Iterator[None]:
        """See nothing: what a flow does after its worker has died, it would not have done."""
        self._is_blind = True
        try:
            yield
        finally:
            self._is_blind = False

    def asked(self, what: str, arguments: object) -> None:
        """Compare what a step is called with to what it was called with before."""
        before, now = self._asked.setdefault(what, shown(arguments)), shown(arguments)
        if before != now:
            self.found(f"{what} was called with {before}, and when the flow was run again, with {now}")

    def of_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of a step, in which everything is allowed."""

        @functools.wraps(function)
        async def run_step(*arguments: Any, **named: Any) -> Any:
            with self._within_step():
                made = function(*arguments, **named)
            return await _Driven(made, self._within_step) if isinstance(made, Coroutine) else made

        return run_step

    @contextmanager
    def _within_step(self) -> Iterator[None]:
        before, self._steps = len(self._effects), self._steps + 1
        try:
            yield
        finally:
            self._steps -= 1
            self._allowed += len(self._effects) - before

    @contextmanager
    def _outside_steps(self, flow: "CoroutineType[Any, Any, Any]") -> Iterator[None]:
        """Look at what the flow itself does, until it waits for something."""
        before, allowed, profile, place = len(self._effects), self._allowed, sys.getprofile(), _place(flow)
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(profile)
            if len(self._effects) - before > self._allowed - allowed:
                self.found(f"{_place(flow) or place}an effect outside a step: {self._effects[-1]!r}")
            if _waits_by_itself(flow):
                self.found(f"{_place(flow)}waits for something outside a step")

    def _look(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or self._steps or function.__qualname__ not in _FROM_OUTSIDE:
            return
        name, caller = function.__qualname__, frame
        # They run whenever Python looks for cycles, wherever that is.
        collecting = {getattr(each, "__code__", None) for each in gc.callbacks}
        while caller is not None and caller.f_code is not _Driven.__await__.__code__:
            package = str(caller.f_globals.get("__name__")).partition(".")[0]
            is_ours = caller.f_code.co_filename.startswith(_OURS)
            if is_ours or package in _INNOCENT or caller.f_code in collecting:
                return
            frame, caller = caller, caller.f_back  # type: ignore[assignment]
        self.found(f"{_line(frame)}asks for {_FROM_OUTSIDE[name]} outside a step: {name}")


class _Driven:
    """A coroutine that is run step by step, each of them inside a block."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], around: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._coroutine = coroutine
        self._around = around

    def __await__(self) -> Generator[Any, Any, Any]:
        go_on: Callable[[Any], Any] = self._coroutine.send
        sent: Any = None
        while True:
            try:
                with self._around():
                    awaited = go_on(sent)
            except StopIteration as end:
                return end.value
            try:
                go_on, sent = self._coroutine.send, (yield awaited)
            except BaseException as error:
                go_on, sent = self._coroutine.throw, error


class _WatchedRun:
    """The run that a watched flow has: it passes everything on, and tells of it."""

    def __init__(self, run: Any, watch: Watch, prefix: str = "") -> None:
        self._run = run
        self._watch = watch
        self._prefix = prefix
        self.asked_for: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    async def gather(self, **branches: Callable[[Any], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
        """Run branches side by side, each of them watched."""
        return cast(
            dict[str, Any],
            await self._run.gather(**{name: self._branch(name, branch) for name, branch in branches.items()}),
        )

    def _branch(
        self, name: str, branch: Callable[[Any], Coroutine[Any, Any, Any]]
    ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def run_branch(run: Any) -> Any:
            mirror = _WatchedRun(run, self._watch, f"{self._prefix}{name}/")
            mirror.asked_for = self.asked_for
            return await self._watch.drive(branch(mirror))

        return run_branch

    async def step(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return await self._recorded("step", name, function, arguments, options)

    async def transaction(
        self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        return await self._recorded("transaction", name, function, arguments, options)

    async def sleep(self, name: str, *arguments: Any, **options: Any) -> Any:
        return await self._waited("sleep", name, arguments, options)

    async def sleep_until(self, name: str, *arguments: Any, **options: Any) -> Any:
        return await self._waited("sleep_until", name, arguments, options)

    async def wait(self, name: str, *arguments: Any, **options: Any) -> Any:
        return await self._waited("wait", name, arguments, options)

    async def _recorded(
        self,
        kind: str,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        self._watch.asked(self._named(kind, name, options), arguments)
        return await getattr(self._run, kind)(name, self._watch.of_step(function), *arguments, **options)

    async def _waited(self, kind: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        # How long it is may differ, as `deadline - run.now()` does: the first time counts.
        self._watch.asked(self._named(kind, name, options), ())
        return await getattr(self._run, kind)(name, *arguments, **options)

    def _named(self, kind: str, name: str, options: dict[str, Any]) -> str:
        what = f"{kind} {self._prefix + name!r}" + (
            f" with key {options['key']!r}" if "key" in options else ""
        )
        self.asked_for.add(what)
        return what


def _waits_by_itself(flow: "CoroutineType[Any, Any, Any]") -> bool:
    """Return whether a flow waits for something that its run knows nothing of."""
    waits_for: Any = flow
    while isinstance(waits_for, CoroutineType):
        if waits_for.cr_code.co_filename.startswith(_OURS):
            return False
        waits_for = waits_for.cr_await
    return waits_for is not None and not isinstance(waits_for, _Driven)


def _place(flow: "CoroutineType[Any, Any, Any]") -> str:
    return _line(flow.cr_frame) if flow.cr_frame is not None else ""


def _line(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: "


def shown(value: Any) -> str:
    """Return a text that is the same for values that are alike: sets have no order, objects no address."""
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}({shown(dict(value))})"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({shown({f.name: getattr(value, f.name) for f in fields(value)})})"
    return _ADDRESS.sub("", repr(value))
