"""Tell the world that due times have come."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from timer_service.domain.messages import DueTimeReached
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandSource
from timer_service.ports.event_sink import EventSink, Published, PublishResult
from timer_service.ports.timer_store import TimerStore
from timer_service.workflows.catch_up import CatchUp, CatchUpChange, Waits
from timer_service.workflows.hold_back import HoldBack, HoldBackChange
from timer_service.workflows.retry import Retry

_NO_CHANGE = HoldBackChange(held=0, freed=0)


@dataclass(frozen=True, slots=True)
class FireReport:
    """What one batch of due timers came to."""

    confirmed: Sequence[DueTimeReached]
    failed: Sequence[tuple[DueTimeReached, PublishResult]]
    confirmed_at: datetime
    marked: int
    hold_back: HoldBackChange
    catch_up: CatchUpChange
    disconnected: bool
    more: bool
    """Whether to look again at once."""
    next_due_at: datetime | None
    """When to look again; asked for only where nothing more is due."""


async def fire_due_timers(
    *,
    store: TimerStore,
    source: CommandSource,
    sink: EventSink,
    clock: Clock,
    limit: int,
    hold_back: HoldBack,
    catch_up: CatchUp,
    retry: Retry,
) -> FireReport:
    """Publish one batch of due timers and mark those that the broker confirmed."""
    now = clock.now()
    if (paused_until := hold_back.everything_until(now)) is not None:
        return _nothing_before(paused_until, now)
    # Ask after the clock was read and before the store is: what the broker had stored by now is either told
    # as waiting or applied, by whichever instance. In any other order a command could be missed.
    waits = await _who_waits(source, catch_up, now)
    async with store.claim_due(now, hold_back.at_once(limit), waits.passed_over(hold_back.at(now))) as claim:
        caught_up = catch_up.settle(waits, claim.timers, more=claim.more)
        events = [timer.reached(now) for timer in claim.timers if waits.lets(timer)]
        results = await sink.publish(events) if events else []
        confirmed_at = clock.now()
        confirmed = [e for e, r in _pairs(events, results) if r.outcome is Published.CONFIRMED]
        # Publish before marking: a crash in between repeats the event under the same id. The other order
        # would lose it. Only the mark is repeated while the store is unwell.
        marked = await retry(lambda: claim.mark_reached(confirmed)) if confirmed else 0
    more = claim.more or marked < len(confirmed)
    return FireReport(
        confirmed=confirmed,
        failed=[(e, r) for e, r in _pairs(events, results) if r.outcome is not Published.CONFIRMED],
        confirmed_at=confirmed_at,
        marked=marked,
        # What waits for commands is due all the same, and tells nothing of the stream.
        hold_back=_NO_CHANGE
        if catch_up.is_waiting and not events
        else hold_back.record(events, results, confirmed_at),
        catch_up=caught_up,
        disconnected=any(r.outcome is Published.DISCONNECTED for r in results),
        more=more,
        next_due_at=None if more else await _next_look(store, hold_back, catch_up, now),
    )


def _nothing_before(moment: datetime, now: datetime) -> FireReport:
    return FireReport(
        confirmed=(),
        failed=(),
        confirmed_at=now,
        marked=0,
        hold_back=_NO_CHANGE,
        catch_up=CatchUpChange(),
        disconnected=False,
        more=False,
        next_due_at=moment,
    )


async def _who_waits(source: CommandSource, catch_up: CatchUp, now: datetime) -> Waits:
    return Waits(now) if catch_up.is_off else catch_up.judge(await source.backlog(catch_up.asks()), now)


def _pairs(
    events: Sequence[DueTimeReached], results: Sequence[PublishResult]
) -> list[tuple[DueTimeReached, PublishResult]]:
    return list(zip(events, results, strict=True))


async def _next_look(
    store: TimerStore, hold_back: HoldBack, catch_up: CatchUp, now: datetime
) -> datetime | None:
    moments = (await store.next_due_at(after=now), hold_back.ends_at(now), catch_up.ends_at(now))
    return min((moment for moment in moments if moment is not None), default=None)
