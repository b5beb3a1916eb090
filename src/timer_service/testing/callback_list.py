"""Lists of timers with callbacks, for timers in a dictionary."""

from collections.abc import Mapping
from datetime import datetime

from timer_service.domain.callback import Sink
from timer_service.domain.callback_status import callback_status
from timer_service.domain.delivery import Delivery
from timer_service.domain.messages import TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.callback_list import CallbackPage, CallbackQuery, ListOrder


class MemoryCallbackList:
    """The list of a dictionary."""

    def __init__(self, timers: Mapping[TimerKey, Timer], deliveries: Mapping[TimerKey, Delivery]) -> None:
        self._timers = timers
        self._deliveries = deliveries

    async def page(self, query: CallbackQuery) -> CallbackPage:
        """Sort them all."""

        def place(timer: Timer) -> tuple[datetime, str]:
            at = timer.registered_at if query.order is ListOrder.CREATED else timer.due_at
            assert at is not None
            return at, timer.service_call_id

        found = sorted(
            (each for each in self._timers.values() if self._is_wanted(each, query)),
            key=place,
            reverse=query.newest_first,
        )
        page = found[query.offset : query.offset + query.limit]
        return CallbackPage(page, min(len(found), query.count_up_to + 1))

    def _is_wanted(self, timer: Timer, query: CallbackQuery) -> bool:
        if timer.tenant_id != query.tenant_id or timer.sink is not Sink.HTTP:
            return False
        delivery = self._deliveries.get(timer.key)
        status = callback_status(timer.state, None if delivery is None else delivery.state)
        return query.status in (None, status)
