"""Publish what is due, then mark what the broker confirmed."""

from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import Event, TimerKey
from timer_service.domain.timer import TimerState
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandBacklog
from timer_service.ports.event_sink import EventSink, Published, PublishResult
from timer_service.ports.timer_store import Claim, DueTimers, HeldBack
from timer_service.waiting import owned
from timer_service.workflows.catch_up import CatchUp, CatchUpChange, Waits
from timer_service.workflows.hold_back import HoldBack, HoldBackChange
from timer_service.workflows.open_questions import OpenQuestions

_NO_CHANGE = HoldBackChange(held=0, freed=0)
_NOT_PUBLISHED = frozenset({Published.REJECTED, Published.STREAM_REFUSED})


@dataclass(frozen=True, slots=True)
class FireReport:
    """What one batch of due timers came to."""

    looked_at: datetime
    confirmed: Sequence[Event]
    failed: Sequence[tuple[Event, PublishResult]]
    confirmed_at: datetime
    hold_back: HoldBackChange
    catch_up: CatchUpChange
    disconnected: bool
    more: bool
    """Whether to look again at once."""
    read_ahead: bool
    """Whether the store did not read all of it now."""
    marked: int = 0
    """How many were marked; none before that is done."""


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """Due timers that are published and still claimed."""

    report: FireReport
    claim: Claim | None = None
    """None if nothing was looked for."""

    @property
    def is_whole(self) -> bool:
        """Whether all that is claimed was confirmed: nobody waits for any of it to be given back."""
        return self.claim is not None and len(self.report.confirmed) == len(self.claim.timers)

    async def mark(self) -> FireReport:
        """Mark what the broker confirmed and complete the report."""
        confirmed = self.report.confirmed
        if self.claim is None or not confirmed:
            return self.report
        marked = await self.claim.mark_reached(confirmed)
        # What was changed meanwhile may be due.
        return replace(self.report, marked=marked, more=self.report.more or marked < len(confirmed))


@asynccontextmanager
async def publish_due_timers(
    *,
    store: DueTimers,
    source: CommandBacklog,
    sink: EventSink,
    clock: Clock,
    limit: int,
    hold_back: HoldBack,
    catch_up: CatchUp,
    questions: OpenQuestions,
) -> AsyncIterator[PublishedBatch]:
    """Publish one batch of due timers; it stays claimed, so that it can be marked, until this is left."""
    # Publish before marking: a crash in between repeats the event under its id. The other order loses it.
    now = clock.now()
    if hold_back.everything_until(now) is not None:
        yield PublishedBatch(_nothing(now))
        return
    asking = _who_waits(source, sink, catch_up, now)
    claiming = _Claiming(store, hold_back.at_once(limit), hold_back.at(now))
    at_ease = catch_up.is_at_ease and sink.problem is None
    look = claiming.beside(asking, questions, now) if at_ease else claiming.after(asking)
    async with look as (waits, claim):
        caught_up = catch_up.settle(waits, claim.timers, more=claim.more)
        # Not the time of the look: what came in since is among them. Nor earlier, if the clock was set back.
        events, results, lost = await _publish(claim, waits, sink, max(now, clock.now()))
        confirmed, failed = _sorted_out(events, results)
        report = FireReport(
            looked_at=now,
            confirmed=confirmed,
            failed=failed,
            confirmed_at=(confirmed_at := clock.now()),
            # What waits for commands is due all the same, and tells nothing of the stream.
            hold_back=_NO_CHANGE
            if (catch_up.is_waiting or waits.up_to is not None) and not events
            else hold_back.record(events, results, confirmed_at),
            catch_up=caught_up,
            disconnected=any(r.outcome is Published.DISCONNECTED for _, r in failed),
            more=claim.more or lost,
            read_ahead=claim.read_ahead,
        )
        yield PublishedBatch(report, claim)


@dataclass(frozen=True, slots=True)
class _Claiming:
    """Claims what is due, knowing who waits for commands.

    The broker is asked after the clock was read: a command that it had stored by then is either reported as
    waiting, or some instance has applied it and the claim sees it.
    """

    store: DueTimers
    limit: int
    held_back: HeldBack

    @asynccontextmanager
    async def after(self, asking: Coroutine[None, None, Waits]) -> AsyncIterator[tuple[Waits, Claim]]:
        """Claim once it is known which tenants wait, and pass over their timers."""
        waits = await asking
        async with self.store.claim_due(waits.due_by, self.limit, waits.passed_over(self.held_back)) as claim:
            yield waits, claim

    @asynccontextmanager
    async def beside(
        self, asking: Coroutine[None, None, Waits], questions: OpenQuestions, now: datetime
    ) -> AsyncIterator[tuple[Waits, Claim]]:
        """Claim at the same time, because nearly always nobody waits: the timer goes out sooner."""
        async with owned(asking) as (asked,), AsyncExitStack() as stack:
            # What other instances apply to a claimed timer waits for the claim; what we apply ourselves is
            # not acknowledged before the answer. Either way the broker still tells of it.
            with questions.asking():
                claim = await stack.enter_async_context(self.store.claim_due(now, self.limit, self.held_back))
                waits: Waits = await asked
            if waits.due_by < now:
                raise BusUnavailable("the command stream does not answer")
            yield waits, claim


async def _publish(
    claim: Claim, waits: Waits, sink: EventSink, now: datetime
) -> tuple[list[Event], list[PublishResult], bool]:
    """Publish the event of each timer that need not wait; also return whether some were no longer ours."""
    timers = ours = waits.let(claim.timers)
    undecided = [t for t in timers if t.expires_after_ms is not None and t.verdict is None]
    if sink.problem is not None:
        undecided = []  # Nothing is sent.
    if undecided:
        # Before publishing: a repeat, however late, then publishes the same event.
        settled = await _settle(claim, undecided, now)
        ours = [timer for timer in timers if timer.key in settled]
    events = [timer.event(timer.judged(now), now) for timer in ours]
    try:
        results = await sink.publish(events) if events else []
    except BusUnavailable:
        await _take_back(claim, undecided)
        raise
    if undecided:
        refused = {e.key for e, r in zip(events, results, strict=True) if r.outcome in _NOT_PUBLISHED}
        await _take_back(claim, [timer for timer in undecided if timer.key in refused])
    return events, results, len(ours) < len(timers)


def _sorted_out(
    events: Sequence[Event], results: Sequence[PublishResult]
) -> tuple[Sequence[Event], Sequence[tuple[Event, PublishResult]]]:
    """Return what the broker has, and what it does not have or may not have."""
    answers = zip(events, results, strict=True)
    failed = [(event, result) for event, result in answers if result.outcome is not Published.CONFIRMED]
    if not failed:
        return events, failed
    answers = zip(events, results, strict=True)
    return [event for event, result in answers if result.outcome is Published.CONFIRMED], failed


async def _settle(claim: Claim, timers: Sequence[DueTimer], now: datetime) -> Collection[TimerKey]:
    """Record which event each of these timers gets; return which timers of the claim may be published."""
    ours = {timer.key for timer in claim.timers}
    for verdict in (TimerState.REACHED, TimerState.EXPIRED):
        if of_verdict := [timer for timer in timers if timer.judged(now) is verdict]:
            ours &= set(await claim.settle(of_verdict, verdict))
    return ours


async def _take_back(claim: Claim, timers: Sequence[DueTimer]) -> None:
    """Forget the verdict on timers whose event the broker certainly does not have: they may still expire."""
    if timers:
        await claim.settle(timers, None)


async def next_look(
    *, store: DueTimers, hold_back: HoldBack, catch_up: CatchUp, looked_at: datetime
) -> datetime | None:
    """Return when to look again after a look that found all that was due; None if nothing is known."""
    if (paused_until := hold_back.everything_until(looked_at)) is not None:
        return paused_until
    moments = (
        await store.next_due_at(after=looked_at),
        hold_back.ends_at(looked_at),
        catch_up.ends_at(looked_at),
    )
    return min((moment for moment in moments if moment is not None), default=None)


def _nothing(now: datetime) -> FireReport:
    return FireReport(
        looked_at=now,
        confirmed=(),
        failed=(),
        confirmed_at=now,
        hold_back=_NO_CHANGE,
        catch_up=CatchUpChange(),
        disconnected=False,
        more=False,
        read_ahead=False,
    )


async def _who_waits(source: CommandBacklog, sink: EventSink, catch_up: CatchUp, now: datetime) -> Waits:
    if catch_up.is_off:
        return Waits(now)
    try:
        if catch_up.asks_beside:
            raise BusUnavailable("the command stream has not answered for long")
        backlog = await source.backlog(catch_up.asks())
    except BusUnavailable:
        # Time counts only while events could be published.
        waits = catch_up.unanswered(now) if sink.problem is None else None
        if waits is None:
            raise
        return waits
    return catch_up.judge(backlog, now)
