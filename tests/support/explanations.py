"""The use case that explains timers, over memory adapters: only what a test is about is spelled out."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from timer_service.adapters.no_broker import NoBroker
from timer_service.domain.messages import Event, ServiceCallId, TenantId
from timer_service.explanations import Explanations, Loops
from timer_service.ports.event_trail import Trail
from timer_service.ports.health import Health, Recent
from timer_service.ports.letter_box import Letter, LettersFound
from timer_service.testing import ManualClock, MemoryTimerStore

QUIET = Recent(0, 0, None, None)


def explanations(
    store: MemoryTimerStore,
    clock: ManualClock,
    *,
    since: Mapping[str, datetime | None] | None = None,
    health: Health | None = None,
    **changes: Any,
) -> Explanations:
    """Return the use case; without changes there is no broker and all is well."""
    nowhere = NoBroker(store)
    loops = Loops(
        health=lambda: health or Health(None, {}),
        recent=lambda: QUIET,
        since=lambda: since or {},
        obstacle=lambda _: None,
        receiver_back_at=lambda _: None,
    )
    parts: dict[str, Any] = {
        "source": nowhere.source,
        "letters": nowhere.letter_box,
        "trail": nowhere.event_trail,
        "loops": loops,
        "has_broker": False,
    }
    return Explanations(store=store, deliveries=store.deliveries, clock=clock, **parts | changes)


class MemoryLetterBox:
    """A letter box that holds what a test puts into it."""

    def __init__(self, *letters: Letter, error: Exception | None = None) -> None:
        self._letters = letters
        self._error = error

    async def naming(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> LettersFound:
        if self._error is not None:
            raise self._error
        name = service_call_id.encode()
        found = [each for each in self._letters if each.tenant_id == tenant_id and name in each.body]
        return LettersFound(tuple(found), len(self._letters))

    async def page(self, tenant_id: TenantId | None, before: int | None, limit: int) -> LettersFound:
        if self._error is not None:
            raise self._error
        found = [
            each
            for each in sorted(self._letters, key=lambda letter: -letter.number)
            if tenant_id in (None, each.tenant_id) and (before is None or each.number < before)
        ]
        return LettersFound(
            tuple(found[:limit]), len(found), found[limit - 1].number if found[limit:] else None
        )

    async def get(self, number: int) -> Letter | None:
        return next((each for each in self._letters if each.number == number), None)


class MemoryTrail:
    """A trail on which every event is found as a test says."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.followed: list[Event] = []

    async def follow(self, event: Event) -> Trail:
        self.followed.append(event)
        return self.trail
