"""Tenants that ask for callbacks, and their receivers, without HTTP: the same use cases and the same port.

Judged from outside alone: what a request was answered, what the sender was asked to send, and what the
receiver answered to that.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tests.simulation.clock import START_MS
from tests.simulation.hook_story import Story, Watch, is_final
from tests.simulation.hooks import CANCEL, RETRY, SCHEDULE, Hook, Want
from tests.simulation.loop import PROCESS, Lively, VirtualLoop
from timer_service.deliveries import Deliveries
from timer_service.domain.callback import Callback, RetryPolicy
from timer_service.domain.delivery import CallbackRequest, CallResult, Delivery, TimedOut
from timer_service.domain.errors import CriticalError, TimerNotFound, TransientError
from timer_service.domain.messages import CancelTimer, Command, ScheduleTimer, ServiceCallId, TenantId
from timer_service.domain.timer import Outcome
from timer_service.timers import NEWEST, Timers

ANSWERS_IN_S = 0.02
"""What a request and its answer take, unless they time out."""
ASKED_AGAIN_IN_S = 0.05
"""A tenant whom nobody listens to tries again, less and less often."""
MAX_AGAIN_IN_S = 30.0

Answer = Outcome | Delivery | None
Api = Callable[[Sequence[Story]], bool]


class Callbacks:
    """Stands in for the REST API and for the sender."""

    def __init__(
        self, hooks: Sequence[Hook], loop: VirtualLoop, watch: Watch, *, insists: bool = True
    ) -> None:
        unwell = {hook.receiver for hook in hooks if not all(map(is_final, hook.answers))}
        self._stories = {
            (hook.tenant, hook.call): Story(hook, watch, hook.receiver not in unwell) for hook in hooks
        }
        self._loop = loop
        self._watch = watch
        self._insists = insists
        """Whether who is not answered asks again, until told what came of it."""
        self._apis: list[Api] = []
        self._unheard: list[tuple[float, Sequence[Story]]] = []
        """Who found nobody to ask, and when."""
        self._turns = 0
        self.requested_s = 0.0
        """When a receiver last saw a request."""

    def begin(self) -> None:
        """Let tenants ask, each at its time."""
        batches = defaultdict[float, list[Story]](list)
        for story in self._stories.values():
            for number, want in enumerate(story.hook.wants()):
                if story.hook.in_batch and number == 0:
                    batches[want.at].append(story)
                else:
                    self._loop.world_at(want.at, self._want, [story], want)
        for at, stories in batches.items():
            self._loop.world_at(at, self._want, stories, None)

    def owed(self) -> list[str]:
        """Return what has been promised and has not come."""
        return [f"the callback of {key}" for key, story in self._stories.items() if story.is_owed()]

    def are_unheard(self) -> bool:
        """Return whether a tenant is still to be told what came of a request."""
        return any(story.wants for story in self._stories.values())

    # What tenants do.

    @asynccontextmanager
    async def serve_api(
        self, _settings: object, *, timers: Timers, deliveries: Deliveries, **_: Any
    ) -> AsyncIterator[None]:
        """Take requests for the process that calls this, until it stops or dies."""
        process = PROCESS.get()
        assert process is not None
        requests: set[asyncio.Task[Sequence[Answer] | None]] = set()
        context = copy_context()

        def take(stories: Sequence[Story]) -> bool:
            if process.dead:
                return False
            wants = [story.wants[0] for story in stories]
            carrying_out = self._carry_out(process, timers, deliveries, stories, wants)
            task = self._loop.create_task(carrying_out, context=context)
            requests.add(task)
            task.add_done_callback(requests.discard)
            # It may be killed before its first step.
            task.add_done_callback(partial(self._answered, stories, wants))
            return True

        self._apis.append(take)
        self._hear()
        try:
            yield
        finally:
            self._apis.remove(take)
            for task in requests:
                task.cancel()
            if requests and not process.dead:
                await asyncio.wait(requests)

    def _want(self, stories: Sequence[Story], want: Want | None) -> None:
        for story in stories:
            story.wants.append(want or next(story.hook.wants()))
        # One thing at a time: a caller that waits for an answer asks for nothing else meanwhile.
        if all(len(story.wants) == 1 for story in stories):
            self._ask(stories)

    def _ask(self, stories: Sequence[Story]) -> None:
        first = stories[0]
        if first.wants[0].kind != SCHEDULE and first.accepted_s is None:
            self._settled(first)  # Who does not know of a timer asks for nothing of it.
            return
        if not self._apis:
            self._unheard.append((self._loop.time(), stories))
            return
        self._turns += 1
        apis = self._apis[self._turns % len(self._apis) :] + self._apis
        if any(take(stories) for take in apis):
            for story in stories:
                story.asked(story.wants[0])
        else:
            self._ask_later(stories)

    def _ask_later(self, stories: Sequence[Story]) -> None:
        self._loop.world_at(self._loop.time() + _next_pause_s(stories[0]), self._ask, stories)

    def _hear(self) -> None:
        """Let those be heard who tried in vain while there was nobody, each at its next try."""
        unheard, self._unheard = self._unheard, []
        for tried_at, stories in unheard:
            pause_s, late_s = 0.0, self._loop.time() - tried_at
            while late_s > 0 and pause_s < MAX_AGAIN_IN_S:
                pause_s = _next_pause_s(stories[0])
                late_s -= pause_s
            # From there on the pauses are equal, and may be many.
            again_in_s = -late_s if late_s <= 0 else pause_s - late_s % pause_s
            self._loop.world_at(self._loop.time() + again_in_s, self._ask, stories)

    def _settled(self, story: Story) -> None:
        """Go on with what is wanted next."""
        story.wants.popleft()
        story.again_in_s = 0.0
        if story.wants:
            self._loop.world_soon(self._ask, [story])

    async def _carry_out(
        self,
        life: Lively,
        timers: Timers,
        deliveries: Deliveries,
        stories: Sequence[Story],
        wants: Sequence[Want],
    ) -> Sequence[Answer] | None:
        try:
            return await self._answers(timers, deliveries, stories, wants)
        except (TransientError, CriticalError):  # To be asked again; one that is critical ends the process.
            return None
        except Exception as error:
            if not life.dead:
                self._watch.violated("I0", f"{_key(stories[0].hook)}: {error!r}")
            return None

    async def _answers(
        self, timers: Timers, deliveries: Deliveries, stories: Sequence[Story], wants: Sequence[Want]
    ) -> Sequence[Answer]:
        hook, want = stories[0].hook, wants[0]
        if want.kind in (SCHEDULE, CANCEL):
            commands = [_command(story.hook, want) for story, want in zip(stories, wants, strict=True)]
            if len(commands) > 1:
                return [each.outcome for each in (await timers.carry_out_all(commands)).decided]
            return [(await timers.carry_out(commands[0])).outcome]
        try:
            if want.kind == RETRY:
                return [(await deliveries.retry(*_key(hook)))[0]]
            return [await deliveries.abandon(*_key(hook))]
        except TimerNotFound:
            return [None]

    def _answered(
        self,
        stories: Sequence[Story],
        wants: Sequence[Want],
        request: "asyncio.Task[Sequence[Answer] | None]",
    ) -> None:
        answers = None if request.cancelled() else request.result()
        unsettled = []
        for number, (story, want) in enumerate(zip(stories, wants, strict=True)):
            answer = None if answers is None else answers[number]
            self._watch.note(f"{_key(story.hook)}: {want.kind} answered {_told(answer)}")
            if answers is None or answer in (Outcome.DUE, Outcome.SUPERSEDED):
                unsettled.append(story)
                continue
            if isinstance(answer, Outcome):
                story.answered(want, answer)
            else:
                story.told_of_delivery(want, answer)
            self._settled(story)
        for story in unsettled:
            if self._insists:
                self._ask_later([story])
            else:
                story.in_doubt = True
                self._settled(story)

    # What receivers see.

    def open_sender(self, *_: object, **__: object) -> AbstractAsyncContextManager["Callbacks"]:
        """Give the sender of whatever process asks for it."""
        return nullcontext(self)

    async def send(self, request: CallbackRequest) -> CallResult:
        """Judge a request, and answer as its receiver does."""
        life = PROCESS.get()
        assert life is not None
        story = self._stories[request.key]
        self._watch.note(f"{request.key}: attempt {request.attempt} under {request.id}")
        result = story.requested(request, life)
        self.requested_s = self._loop.time()
        attempt = story.attempts[-1]
        await asyncio.sleep(result.after.total_seconds() if isinstance(result, TimedOut) else ANSWERS_IN_S)
        story.ended(attempt, result)
        self._watch.note(f"{request.key}: {result}")
        return result


def _next_pause_s(story: Story) -> float:
    story.again_in_s = min(max(2 * story.again_in_s, ASKED_AGAIN_IN_S), MAX_AGAIN_IN_S)
    return story.again_in_s


def _command(hook: Hook, want: Want) -> Command:
    if want.kind == CANCEL:
        return CancelTimer(*_key(hook), NEWEST)
    callback = Callback(
        f"https://{hook.receiver}.example/",
        retry=RetryPolicy(tuple(timedelta(seconds=seconds) for seconds in hook.delays_s)),
        expires_after=None if hook.expires_s is None else timedelta(seconds=hook.expires_s),
    )
    due_at = datetime.fromtimestamp((START_MS + round(want.due_s * 1000)) / 1000, UTC)
    return ScheduleTimer(*_key(hook), due_at, None, NEWEST, callback=callback, if_absent=want.if_absent)


def _key(hook: Hook) -> tuple[TenantId, ServiceCallId]:
    return TenantId(hook.tenant), ServiceCallId(hook.call)


def _told(answer: Answer) -> str:
    return str(answer if not isinstance(answer, Delivery) else answer.state)
