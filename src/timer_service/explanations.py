"""The use case that answers "where is my timer?": it gathers what is known and lets a pure function judge."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from timer_service.domain.callback import Sink
from timer_service.domain.delivery import DeliveryState
from timer_service.domain.errors import BusUnavailable, RightMissing, TransientError
from timer_service.domain.lanes import Lane
from timer_service.domain.messages import (
    DueTimeReached,
    Event,
    ServiceCallId,
    TenantId,
    TimerExpired,
    TimerKey,
)
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.clock import GuardedClock
from timer_service.ports.command_source import CommandBacklog
from timer_service.ports.delivery_store import CallbackRecord, DeliveryRecords
from timer_service.ports.event_trail import EventTrail
from timer_service.ports.explanation import Explanation, Facts, Obstacle
from timer_service.ports.health import Health, Recent
from timer_service.ports.letter_box import LetterBox
from timer_service.ports.timer_store import TimerStore
from timer_service.workflows.explain_timer import explain

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loops:
    """What the loops of this instance know of their own work."""

    health: Callable[[], Health]
    recent: Callable[[], Recent]
    since: Callable[[], Mapping[str, datetime | None]]
    """Part to when its problem began."""
    obstacle: Callable[[Timer], Obstacle | None]
    receiver_back_at: Callable[[Lane], datetime | None]


class Explanations:
    """Say why a timer is as it is. May raise TransientError: ask again."""

    def __init__(
        self,
        *,
        store: TimerStore,
        deliveries: DeliveryRecords,
        source: CommandBacklog,
        clock: GuardedClock,
        letters: LetterBox,
        trail: EventTrail,
        loops: Loops,
        has_broker: bool,
    ) -> None:
        self._store = store
        self._deliveries = deliveries
        self._source = source
        self._clock = clock
        self._letters = letters
        self._trail = trail
        self._loops = loops
        self._has_broker = has_broker

    def since(self) -> Mapping[str, datetime]:
        """Return when the problem of each part began that has one."""
        return {part: at for part, at in self._loops.since().items() if at is not None}

    async def explain(
        self, tenant_id: TenantId, service_call_id: ServiceCallId, *, for_operator: bool = False
    ) -> Explanation:
        """Explain one timer, or that there is none; an operator is also told of others' consumers."""
        timer = await self._store.get(tenant_id, service_call_id)
        now = self._clock.now()
        facts = Facts(
            now,
            timer,
            health=self._loops.health(),
            since=self.since(),
            has_broker=self._has_broker,
            held_step=timedelta(seconds=self._clock.held_step_s),
        )
        if timer is None:
            return explain(
                await self._of_absent(facts, (tenant_id, service_call_id), for_operator=for_operator)
            )
        if timer.state is TimerState.SCHEDULED:
            return explain(await self._of_scheduled(facts, timer))
        return explain(await self._of_ended(facts, timer, for_operator=for_operator))

    async def _of_absent(self, facts: Facts, key: TimerKey, *, for_operator: bool) -> Facts:
        letters, unknown = await _looked(
            "dead letters", self._letters.naming(*key), for_operator=for_operator
        )
        waits: bool | None = None
        try:
            backlog = await self._source.backlog({})
            waits = backlog.concerns(key[0])
        except BusUnavailable:
            pass  # The problem of the broker says it.
        return replace(facts, letters=letters, unknown=unknown, commands_wait=waits)

    async def _of_scheduled(self, facts: Facts, timer: Timer) -> Facts:
        assert timer.due_at is not None
        if timer.due_at > facts.now:
            return facts
        try:
            due = (await self._store.count(facts.now)).overdue
        except TransientError:
            due = 0  # The problem of the store says it.
        obstacle = self._loops.obstacle(timer)
        return replace(facts, obstacle=obstacle, due=due, fired_per_s=self._loops.recent().fired_per_s)

    async def _of_ended(self, facts: Facts, timer: Timer, *, for_operator: bool) -> Facts:
        event = _event_of(timer)
        if event is None:
            return facts
        if timer.sink is Sink.HTTP:
            record = (await self._deliveries.get([timer.key])).get(timer.key)
            return replace(facts, record=record, receiver_back_at=self._receiver(timer, record))
        trail, unknown = await _looked("events", self._trail.follow(event), for_operator=for_operator)
        if trail is not None and not for_operator:
            trail = replace(trail, readers=tuple(each for each in trail.readers if each.of_tenant))
        return replace(facts, trail=trail, unknown=unknown)

    def _receiver(self, timer: Timer, record: CallbackRecord | None) -> datetime | None:
        if record is None or record.delivery is None or record.delivery.state is not DeliveryState.WAITING:
            return None
        return self._loops.receiver_back_at((timer.tenant_id, record.delivery.origin))


def _event_of(timer: Timer) -> Event | None:
    """Return the event that a timer has fired with; None if it has not."""
    at = timer.reached_at or timer.expired_at
    if at is None or timer.due_at is None:
        return None
    kind = DueTimeReached if timer.state is TimerState.REACHED else TimerExpired
    return kind(
        timer.tenant_id, timer.service_call_id, timer.due_at, at, timer.generation, timer.correlation_id
    )


async def _looked(where: str, look: Awaitable[T], *, for_operator: bool) -> tuple[T | None, tuple[str, ...]]:
    """Return what was found, or why nobody could look."""
    try:
        return await look, ()
    except (BusUnavailable, RightMissing) as error:
        return None, (f"{where}: {error if for_operator else error.public}",)
