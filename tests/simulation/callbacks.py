"""Tenants that ask for callbacks, and their receivers: what they are told and what they see must agree.

Judged from outside alone: what a request was answered, what the sender was asked to send, and what the
receiver answered to that.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.simulation.clock import START_MS
from tests.simulation.hooks import Hook, retry_after_s
from tests.simulation.loop import PROCESS, Lively, VirtualLoop
from timer_service.domain.callback import Callback, RetryPolicy
from timer_service.domain.delivery import Answered, CallbackRequest, CallResult, TimedOut
from timer_service.domain.errors import CriticalError, TransientError
from timer_service.domain.messages import CancelTimer, Command, ScheduleTimer, ServiceCallId, TenantId
from timer_service.domain.timer import Outcome
from timer_service.timers import NEWEST, Timers

ANSWERS_IN_S = 0.02
"""What a request and its answer take, unless they time out."""
ASKED_AGAIN_IN_S = 0.05
"""A tenant whom nobody listens to tries again, less and less often."""
MAX_AGAIN_IN_S = 30.0
TAKEN = Answered(200)
GONE = 410
"""What a receiver answers that wants no other attempt."""


@dataclass(slots=True)
class _Attempt:
    number: int
    life: Lively
    result: CallResult | None = None
    """None as long as the service has no answer."""
    ended_ms: int = 0


@dataclass(slots=True)
class _Story:
    """All that is known of one timer with a callback."""

    hook: Hook
    scheduled: bool = False
    """Whether a tenant was told so."""
    cancel_asked: bool = False
    cancelled: bool | None = None
    """What a tenant was told; None if nothing."""
    is_unheard: bool = False
    """Whether its tenant is about to ask again, as nobody listened."""
    again_in_s: float = ASKED_AGAIN_IN_S
    id: UUID | None = None
    attempts: list[_Attempt] = field(default_factory=list)

    @property
    def is_owed(self) -> bool:
        """Whether its callback still has to come."""
        if self.attempts:
            last = self.attempts[-1]
            is_last = last.number == len(self.hook.delays_s) + 1
            return last.result is None or not (_is_final(last.result) or is_last)
        in_doubt = self.cancel_asked and self.cancelled is None
        return self.scheduled and not self.cancelled and not in_doubt


class Callbacks:
    """Stands in for the REST API and for the sender: the same use cases and the same port, without HTTP."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        loop: VirtualLoop,
        wall_ms: Callable[[], int],
        violated: Callable[[str, str], None],
        note: Callable[[str], None],
    ) -> None:
        self._stories = {(hook.tenant, hook.call): _Story(hook) for hook in hooks}
        self._loop = loop
        self._wall_ms = wall_ms
        self._violated = violated
        self._note = note
        self._ask: Callable[[Sequence[_Story], Sequence[Command]], bool] = _nobody
        self.requested_s = 0.0
        """When a receiver last saw a request."""

    def begin(self) -> None:
        """Let tenants ask, each at its time."""
        batches = defaultdict[float, list[_Story]](list)
        for story in self._stories.values():
            if story.hook.in_batch:
                batches[story.hook.at].append(story)
            else:
                self._loop.world_at(story.hook.at, self._schedule, [story])
            if story.hook.cancel_at is not None:
                self._loop.world_at(story.hook.cancel_at, self._cancel, [story])
        for at, stories in batches.items():
            self._loop.world_at(at, self._schedule, stories)

    def owed(self) -> list[str]:
        """Return what has been promised and has not come."""
        return [f"the callback of {key}" for key, story in self._stories.items() if story.is_owed]

    def are_unheard(self) -> bool:
        """Return whether a tenant is still to ask for something, because nobody listened before."""
        return any(story.is_unheard for story in self._stories.values())

    # What tenants do.

    @asynccontextmanager
    async def serve_api(self, _settings: object, *, timers: Timers, **_: Any) -> AsyncIterator[None]:
        """Take requests for the process that calls this, until it stops or dies."""
        process = PROCESS.get()
        assert process is not None
        requests: set[asyncio.Task[None]] = set()
        context = copy_context()

        def ask(stories: Sequence[_Story], commands: Sequence[Command]) -> bool:
            if process.dead:
                return False
            carrying_out = self._carry_out(process, timers, stories, commands)
            task = self._loop.create_task(carrying_out, context=context)
            requests.add(task)
            task.add_done_callback(requests.discard)
            return True

        self._ask = ask
        try:
            yield
        finally:
            if self._ask is ask:
                self._ask = _nobody
            for task in requests:
                task.cancel()
            if requests and not process.dead:
                await asyncio.wait(requests)

    def _schedule(self, stories: Sequence[_Story]) -> None:
        self._send(stories, [_scheduling(story.hook) for story in stories], self._schedule)

    def _cancel(self, stories: Sequence[_Story]) -> None:
        # Who does not know of a timer does not cancel it.
        [story] = stories
        if story.scheduled:
            story.cancel_asked = True
            self._send(stories, [CancelTimer(*_key(story.hook), NEWEST)], self._cancel)

    def _send(
        self,
        stories: Sequence[_Story],
        commands: Sequence[Command],
        again: Callable[[Sequence[_Story]], None],
    ) -> None:
        first = stories[0]
        first.is_unheard = not self._ask(stories, commands)
        if not first.is_unheard:
            first.again_in_s = ASKED_AGAIN_IN_S
        else:
            self._loop.world_at(self._loop.time() + first.again_in_s, again, stories)
            first.again_in_s = min(2 * first.again_in_s, MAX_AGAIN_IN_S)

    async def _carry_out(
        self, life: Lively, timers: Timers, stories: Sequence[_Story], commands: Sequence[Command]
    ) -> None:
        try:
            if stories[0].hook.in_batch and len(commands) > 1:
                outcomes = [each.outcome for each in await timers.carry_out_all(commands)]
            else:
                outcomes = [(await timers.carry_out(command)).outcome for command in commands]
        except TransientError:
            self._note(f"{commands[0].key}: to be asked again")
            return
        except Exception as error:
            if not life.dead and not isinstance(error, CriticalError):  # Which ends the process.
                self._violated("I0", f"{commands[0].key}: {error!r}")
            return
        for story, command, outcome in zip(stories, commands, outcomes, strict=True):
            self._answered(story, command, outcome)

    def _answered(self, story: _Story, command: Command, outcome: Outcome) -> None:
        self._note(f"{command.key}: answered {outcome}")
        if outcome in (Outcome.DUE, Outcome.SUPERSEDED):
            return  # It may be asked again.
        if isinstance(command, ScheduleTimer):
            story.scheduled = True
            return
        story.cancelled = outcome in (Outcome.CANCELLED, Outcome.ALREADY_CANCELLED)
        if story.cancelled and story.attempts:
            self._violated("I4", f"{command.key}: `cancelled` was answered after a request was sent")

    # What receivers see.

    def open_sender(self, *_: object, **__: object) -> AbstractAsyncContextManager["Callbacks"]:
        """Give the sender of whatever process asks for it."""
        return nullcontext(self)

    async def send(self, request: CallbackRequest) -> CallResult:
        """Judge a request, and answer as its receiver does."""
        life = PROCESS.get()
        assert life is not None
        story = self._stories[request.key]
        self._note(f"{request.key}: attempt {request.attempt} under {request.id}")
        self._judge(story, request, life)
        self.requested_s = self._loop.time()
        attempt = _Attempt(request.attempt, life)
        script = story.hook.answers
        result = script[len(story.attempts)] if len(story.attempts) < len(script) else TAKEN
        story.attempts.append(attempt)
        await asyncio.sleep(result.after.total_seconds() if isinstance(result, TimedOut) else ANSWERS_IN_S)
        attempt.result, attempt.ended_ms = result, self._wall_ms()
        self._note(f"{request.key}: {result}")
        return result

    def _judge(self, story: _Story, request: CallbackRequest, life: Lively) -> None:
        hook, now_ms = story.hook, self._wall_ms()
        if now_ms < START_MS + round(hook.due_s * 1000):
            self._violated("I2", f"{request.key}: a request before the due time")
        if story.cancelled:
            self._violated("I4", f"{request.key}: a request after `cancelled` was answered")
        if story.id not in (None, request.id):
            self._violated("I3", f"{request.key}: {request.id} is another id than {story.id}")
        story.id = request.id
        last = story.attempts[-1] if story.attempts else None
        number = 0 if last is None else last.number
        if last is not None and request.attempt == number and life is not last.life:
            return  # Its outcome was lost with the process.
        if request.attempt != number + 1 or number > len(hook.delays_s):
            self._violated("I3", f"{request.key}: attempt {request.attempt} after {number}")
        elif last is not None and (last.result is None or _is_final(last.result)):
            self._violated("I3", f"{request.key}: attempt {request.attempt} after {last.result}")
        elif last is not None and now_ms < last.ended_ms + _pause_ms(hook, last):
            self._violated("I2", f"{request.key}: attempt {request.attempt} comes too early")


def _nobody(_stories: Sequence[_Story], _commands: Sequence[Command]) -> bool:
    """Stand in for a process that is away."""
    return False


def _scheduling(hook: Hook) -> ScheduleTimer:
    callback = Callback(
        f"https://{hook.receiver}.example/",
        retry=RetryPolicy(tuple(timedelta(seconds=seconds) for seconds in hook.delays_s)),
    )
    due_at = datetime.fromtimestamp((START_MS + round(hook.due_s * 1000)) / 1000, UTC)
    return ScheduleTimer(*_key(hook), due_at, None, NEWEST, callback=callback)


def _key(hook: Hook) -> tuple[TenantId, ServiceCallId]:
    return TenantId(hook.tenant), ServiceCallId(hook.call)


def _is_final(result: CallResult) -> bool:
    return isinstance(result, Answered) and result.status in (TAKEN.status, GONE)


def _pause_ms(hook: Hook, attempt: _Attempt) -> float:
    """Return what the schedule or the receiver asks for after an attempt that failed."""
    assert attempt.result is not None
    return 1000 * max(hook.delays_s[attempt.number - 1], retry_after_s(attempt.result))
