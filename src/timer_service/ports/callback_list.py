"""Timers with callbacks in the order in which their owner asks for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from timer_service.domain.callback_status import CallbackStatus
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import Timer


class ListOrder(StrEnum):
    """What a list is sorted by; timers of the same moment are sorted by id."""

    CREATED = "created"
    DUE = "due"


@dataclass(frozen=True, slots=True)
class CallbackQuery:
    """Which timers with callbacks of one tenant to list."""

    tenant_id: TenantId
    status: CallbackStatus | None = None
    order: ListOrder = ListOrder.CREATED
    newest_first: bool = True
    """Whether the list begins with the latest moment."""
    offset: int = 0
    limit: int = 50
    count_up_to: int = 10_000
    """Beyond this number they are not counted."""


@dataclass(frozen=True, slots=True)
class CallbackPage:
    """Some timers in their order."""

    timers: Sequence[Timer]
    total: int
    """How many there are in all, at most one more than the query counts up to."""


class CallbackList(Protocol):
    """A list that can be read from any offset. A page costs what comes before it, not the whole list."""

    async def page(self, query: CallbackQuery) -> CallbackPage:
        """Return a page and count the list. Raises TransientError."""
        ...
